"""`ticketflow reservations`: payments that wait for a person, and money that came too late."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.options import AsJson
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.local.account import account

app = typer.Typer(help="Payments that are stuck, and money without a ticket.", no_args_is_help=True)
_MOST = 100


@app.command("stuck")
def stuck(*, as_json: AsJson = False) -> None:
    """List reservations whose payment outlasted its grace; they hold their seats until a person resolves them."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, moment, note_limit, plain_table
    from ticketflow_orch.ticketing.stuck_payments import stuck_payments

    with database("reservations") as engine, engine.connect() as connection:
        found = stuck_payments(connection, _MOST)
    if as_json:
        json_lines(found)
        return
    if not found:
        typer.echo("No payment is stuck.")
        return
    plain_table(
        ("reservation", "event", "seats", "payment began (UTC)", "reported (UTC)", "money", "resolve with"),
        (
            (
                payment.reservation,
                payment.event,
                str(payment.quantity),
                moment(payment.payment_started_at),
                moment(payment.reported_at),
                "came in" if payment.captured else "not seen",
                "--confirm" if payment.captured else "--expire, or --confirm when the provider has it",
            )
            for payment in found
        ),
    )
    note_limit(len(found), _MOST)


@app.command("resolve")
def resolve(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The reservation, as `reservations stuck` shows it.")],
    confirm: Annotated[bool, typer.Option("--confirm", help="Its buyer has paid: give them the seats.")] = False,
    expire: Annotated[bool, typer.Option("--expire", help="No money will come: release the seats.")] = False,
) -> None:
    """Resolve a stuck payment by what its provider says."""
    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.settings import settings
    from ticketflow_orch.ticketing import stuck_payments

    if confirm == expire:
        raise InvalidInput(f"Say how {reference!r} is resolved: --confirm or --expire.")
    now = clock.now(settings().fixed_clock)
    with database("reservations") as engine, transaction(engine) as connection:
        if confirm:
            stuck_payments.confirm(connection, reference, now)
        else:
            stuck_payments.expire(connection, reference, now, f"by hand: {account()}")
    typer.echo(f"{reference} is {'confirmed' if confirm else 'expired, and its seats are released'}.")


@app.command("unticketed")
def unticketed(*, as_json: AsJson = False) -> None:
    """List captures that came after their reservation had ended: to be refunded, or sold a ticket anew."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, moment, note_limit, plain_table
    from ticketflow_orch.formatting.money import written_out
    from ticketflow_orch.ticketing.captures import money_without_ticket

    with database("reservations") as engine, engine.connect() as connection:
        found = money_without_ticket(connection, _MOST)
    if as_json:
        json_lines(found)
        return
    if not found:
        typer.echo("All money has its ticket.")
        return
    plain_table(
        ("recorded (UTC)", "capture", "amount", "reservation", "its state"),
        (
            (
                moment(money.recorded_at),
                money.movement,
                f"{written_out(money.amount, money.exponent)} {money.currency}",
                money.reservation,
                money.status,
            )
            for money in found
        ),
    )
    note_limit(len(found), _MOST)
