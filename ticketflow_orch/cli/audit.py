"""`ticketflow audit`: whether all is right, invariant by invariant."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticketflow_orch.auditing import Verdict

_SHOWN = 20


def audit(
    month: Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Only what is about this month.")] = None,
    organization: Annotated[str | None, typer.Option(metavar="REF", help="Only this organization.")] = None,
) -> None:
    """Recompute every month, closed ones included, and judge all that must hold. Reads one snapshot, changes nothing.

    What is broken is shown with its first rows and how to fix it. Exit code 1 when anything is; warnings leave it 0.
    """
    from ticketflow_orch.auditing import INVARIANTS, Asked, examine, organization_members, snapshot
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import steps_shown
    from ticketflow_orch.db.installation import decided
    from ticketflow_orch.months import Month
    from ticketflow_orch.settings import settings

    only = None if month is None else Month.parse(month)
    with database("audit") as engine, snapshot(engine) as connection, steps_shown(len(INVARIANTS)) as step:
        asked = Asked.configured(decided(connection, settings()), only)
        if organization is not None:
            asked = asked.narrowed_to(organization_members(connection, organization))
        verdicts = list(
            examine(connection, asked, progress=lambda invariant, done: step(invariant.name, str(done or "")))
        )
    for verdict in verdicts:
        _print(verdict)
    broken = sum(verdict.is_broken for verdict in verdicts)
    warnings = sum(verdict.warns for verdict in verdicts)
    if broken:
        typer.echo(f"{broken} of {len(verdicts)} are broken.")
    else:
        typer.echo(f"Nothing is broken; {warnings} to look at." if warnings else "All is as it should be.")
    raise typer.Exit(FAILED if broken else DONE)


def _print(verdict: Verdict) -> None:
    invariant = verdict.invariant
    if not verdict.is_broken and not verdict.count:
        typer.echo(f"OK      {invariant.name}")
        return
    found = "no answer" if verdict.no_answer else f"{verdict.count:,}"
    label = "BROKEN" if verdict.is_broken else "WARNING" if verdict.warns else "listed"
    typer.echo(f"{label:<8}{invariant.name}: {found}")
    typer.echo(f"        {invariant.holds}")
    lines = list(islice(_lines(verdict), _SHOWN))
    for line in lines:
        typer.echo(f"          {line}")
    if verdict.count > len(lines):
        typer.echo(f"          and {verdict.count - len(lines):,} more")
    typer.echo(f"        Fix: {invariant.fix}")


def _lines(verdict: Verdict) -> Iterator[str]:
    if verdict.no_answer is not None:
        yield f"the database has no answer: {verdict.no_answer}"
    for finding in verdict.findings:
        for one in finding.examples:
            yield " ".join(filter(None, (str(finding.month or ""), one.organization, one.currency, one.what)))
