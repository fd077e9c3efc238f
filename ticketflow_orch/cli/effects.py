"""`ticketflow effects`: who got what, when, and under which key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.options import AsJson
from ticketflow_orch.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticketflow_orch.reports.activity import Effect

_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def effects(
    reservation: Annotated[str | None, typer.Option(metavar="REF", help="One reservation.")] = None,
    event: Annotated[str | None, typer.Option(metavar="REF", help="An event and its reservations.")] = None,
    organization: Annotated[str | None, typer.Option(metavar="REF", help="An organization and its events.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what one reservation, event or organization got: the last 1,000 effects, the oldest of them first."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines
    from ticketflow_orch.reports.activity import effects_on_event, effects_on_organization, effects_on_reservation

    if [reservation, event, organization].count(None) != 2:  # noqa: PLR2004 - all but one
        raise InvalidInput("Name one of --reservation, --event and --organization, with its external reference.")
    with database("effects") as engine, engine.connect() as connection:
        if reservation is not None:
            found = effects_on_reservation(connection, reservation)
        elif event is not None:
            found = effects_on_event(connection, event)
        else:
            found = effects_on_organization(connection, str(organization))
    if as_json:
        json_lines(found)
    else:
        _print_table(found)


def _print_table(effects: Sequence[Effect]) -> None:
    from ticketflow_orch.cli.terminal import moment, plain_table

    if not effects:
        typer.echo("Nothing yet.")
        return
    plain_table(
        ("at (UTC)", "who", "what", "state", "delivered", "key", "run"),
        (
            (
                moment(effect.at),
                effect.who,
                effect.what,
                effect.state,
                moment(effect.delivered_at),
                effect.key,
                _short(effect.run_id or ""),
            )
            for effect in effects
        ),
    )


def _short(run_id: str) -> str:
    """A run as the UI names it, by its first eight characters; a person by the whole name."""
    return run_id.partition("-")[0] if _RUN.fullmatch(run_id) else run_id
