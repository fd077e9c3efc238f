"""`ticketflow erase`: a buyer's address and name out of everything that may let go of them."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.options import DryRun
from ticketflow_orch.formatting.counts import counted

# What nobody reaches from here, or nobody may change.
STAYS = (
    "An address that takes no mail any more stays on that list, so that nobody mails it.",
    "Movements, ledger and statements stay for as long as the law keeps books; they name reservations, not buyers.",
    "Elsewhere it may be in backups, in Dagster's logs of runs (until TICKETFLOW_RUNS_KEPT), in files that were "
    "delivered or imported, and with those who received mails and events.",
)


def erase(
    buyer: Annotated[str, typer.Argument(metavar="BUYER", help="The buyer's address, as their reservations have it.")],
    name: Annotated[str | None, typer.Option(help="Their name, where texts may hold it.")] = None,
    *,
    dry_run: DryRun = False,
) -> None:
    """Remove a buyer's address and name from reservations, sent mails and records; say what stays, and why.

    Nothing is held back for a reservation without money, or whose event ended longer than TICKETFLOW_ERASE_AFTER ago.
    """
    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import plain_table
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.settings import settings
    from ticketflow_orch.ticketing import erasure

    whom = erasure.Buyer(buyer, clock.now(settings().fixed_clock), settings().erase_after, name)
    with database("erase") as engine, transaction(engine) as connection:
        done = erasure.erase(connection, whom, dry_run=dry_run)
    would = "would be " if dry_run else ""
    plain_table(
        ("reservation", "event", "state", "address"),
        (
            (one.reservation, one.event, one.status, f"{would}erased" if one.stays is None else f"stays: {one.stays}")
            for one in done.reservations
        ),
    )
    typer.echo(
        f"{counted(sum(one.stays is None for one in done.reservations), 'reservation')}, "
        f"{counted(done.events, 'event')} of the outbox and {counted(done.records, 'record')} {would}erased."
    )
    for event_id, why in done.left:
        typer.echo(f"Event {event_id} stays: {why}.")
    for sentence in STAYS:
        typer.echo(sentence)
