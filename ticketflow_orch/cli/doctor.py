"""`ticketflow doctor`: what is configured, reachable, pending or stopped, and how to fix it."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.exit_codes import FAILED


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Count what is stopped as wrong, for deployments.")] = False,
) -> None:
    """Say what is configured, reachable, pending or stopped, and how to fix it. Changes nothing.

    Exit code 1 when something is wrong.
    """
    from rich.table import Table
    from rich.text import Text

    from ticketflow_orch.cli.doctor_findings import examine
    from ticketflow_orch.cli.findings import State
    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.settings import settings

    colours = {State.OK: "green", State.STOPPED: "yellow", State.WRONG: "red"}
    table = Table("what", "state", "found", "how to fix it", pad_edge=False, box=None)
    findings = list(examine(settings()))
    for finding in findings:
        state = Text(finding.state, style=colours[finding.state])
        table.add_row(Text(finding.subject), state, Text(finding.detail), Text(finding.fix))
    console().print(table)
    bad = {State.WRONG, State.STOPPED} if strict else {State.WRONG}
    if any(finding.state in bad for finding in findings):
        raise typer.Exit(FAILED)
