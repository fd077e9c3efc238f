"""`ticketflow park` and `unpark`: stopping an organization's balances and payouts by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.options import By
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.local.account import account

if TYPE_CHECKING:
    from ticketflow_orch.payouts.parking import Parking

Organization = Annotated[str | None, typer.Argument(help="The organization's external reference.")]


def park(
    organization: Organization = None,
    reason: Annotated[str, typer.Option(help="Why; analysts read it beside the month.")] = "",
    by: By = None,
) -> None:
    """Park an organization: from the first month that is not closed it gets no balance and no payout.

    What is requested and not sent yet is held. It is settled all the same. Without an organization: list who is parked
    by hand.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.months import Month
    from ticketflow_orch.payouts import parking
    from ticketflow_orch.settings import settings

    with database("park") as engine:
        if organization is None:
            with engine.connect() as connection:
                _list(parking.parked_by_hand(connection))
            return
        parked = parking.park(engine, organization, reason, by or account(), Month.parse(settings().first_month))
    typer.echo(f"{parked.external_ref} is parked from {parked.month} on: {parked.reason}.")
    if parked.held:
        typer.echo(
            f"{counted(parked.held, 'payout')} held; `ticketflow unpark {parked.external_ref}` sends "
            f"{'it' if parked.held == 1 else 'them'}."
        )
    for reference in parked.on_their_way:
        typer.echo(f"Not held, because it was sent or is being sent: payout {reference}; ask the provider to stop it.")


def unpark(
    organization: Annotated[str, typer.Argument(help="The organization's external reference.")], by: By = None
) -> None:
    """End a parking by hand; the next month that is closed balances all that was posted meanwhile.

    The payouts that only the parking held are sent.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.payouts import parking

    with database("unpark") as engine:
        parked = parking.unpark(engine, organization, by or account())
    typer.echo(f"{parked.external_ref} is not parked any more; it was since {parked.since:%Y-%m-%d}: {parked.reason}.")
    if parked.released:
        typer.echo(f"{counted(parked.released, 'payout')} let go.")


def _list(parkings: tuple[Parking, ...]) -> None:
    from ticketflow_orch.cli.terminal import here, minute, plain_table

    if not parkings:
        typer.echo("Nobody is parked by hand.")
        return
    plain_table(
        ("organization", "from", "why", "who", f"since ({here()})"),
        ((one.external_ref, str(one.month), one.reason, one.parked_by, minute(one.since)) for one in parkings),
    )
