"""`ticketflow payouts`: what is paid out, and what people decide about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ticketflow_orch.cli.options import AsJson
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.local.account import account

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from ticketflow_orch.months import Month
    from ticketflow_orch.payouts.actions import Selection
    from ticketflow_orch.payouts.queries import Payout

app = typer.Typer(help="Payouts: what was asked for, what became of it, and what you decide.", no_args_is_help=True)
_MOST = 100

Reference = Annotated[str, typer.Argument(metavar="REF", help="The payout, as `payouts list` shows it.")]
AnyReference = Annotated[str | None, typer.Argument(metavar="[REF]", help="One payout, as `payouts list` shows it.")]
MonthOption = Annotated[str | None, typer.Option("--month", metavar="YYYY-MM", help="Only this month's.")]
CurrencyOption = Annotated[str | None, typer.Option("--currency", metavar="CODE", help="Only in this currency.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stays with the payout.")]


@app.command("list")
def list_(
    month: MonthOption = None,
    currency: CurrencyOption = None,
    state: Annotated[str | None, typer.Option(help="Such as held, in_doubt or rejected.")] = None,
    organization: Annotated[str | None, typer.Option(metavar="REF", help="Only this organization's.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the last 100 payouts, the newest first."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, note_limit, plain_table
    from ticketflow_orch.closing.currency_terms import code
    from ticketflow_orch.formatting.money import written_out
    from ticketflow_orch.months import Month
    from ticketflow_orch.payouts.pause import paused
    from ticketflow_orch.payouts.queries import payouts

    with database("payouts") as engine, engine.connect() as connection:
        stop = paused(connection)
        found = payouts(
            connection,
            month=None if month is None else Month.parse(month),
            currency=None if currency is None else code(currency),
            state=state and state.upper(),
            organization=organization,
            limit=_MOST,
        )
    if as_json:
        json_lines(found)
        return
    if stop is not None:
        typer.echo(f"Payouts are paused: {stop}.")
    if not found:
        typer.echo("There is no such payout.")
        return
    plain_table(
        ("month", "organization", "amount", "state", "why", "reference"),
        (
            (
                str(payout.month),
                payout.organization,
                f"{written_out(payout.amount, payout.exponent)} {payout.currency}",
                payout.state,
                _why(payout),
                payout.reference,
            )
            for payout in found
        ),
    )
    note_limit(len(found), _MOST, "last")


@app.command("show")
def show(reference: Reference, *, as_json: AsJson = False) -> None:
    """Show one payout: what became of it, who decided what, and how far its delivery is."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, plain_table
    from ticketflow_orch.payouts.queries import payout

    with database("payouts") as engine, engine.connect() as connection:
        found = payout(connection, reference)
    if as_json:
        json_lines([found])
        return
    plain_table(("", ""), [line for line in _lines(found) if line[1]])


@app.command("compare")
def compare(
    file: Annotated[
        typer.FileText,
        typer.Argument(metavar="FILE", encoding="utf-8", help="A JSON object a line; - for the standard input."),
    ],
    *,
    complete: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="Also name what the list lacks of this month.")
    ] = None,
) -> None:
    """Name where a provider's list of payments and our payouts do not agree, as after a restore or a promotion.

    Changes nothing. Exit code 1 when there is anything.
    """
    from ticketflow_orch.cli.exit_codes import FAILED
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import plain_table
    from ticketflow_orch.months import Month
    from ticketflow_orch.payouts import comparing

    listed = list(comparing.read_listed(file))
    month = None if complete is None else Month.parse(complete)
    with database("payouts compare") as engine, engine.connect() as connection:
        found = list(comparing.compare(connection, listed, month))
    if not found:
        typer.echo(f"The {len(listed):,} payments of the list are as they are here.")
        return
    plain_table(
        ("month", "organization", "reference", "what"),
        ((str(one.month or ""), one.organization, str(one.reference), one.what) for one in found),
    )
    raise typer.Exit(FAILED)


@app.command("from")
def from_(
    month: Annotated[str | None, typer.Argument(metavar="[YYYY-MM]", help="The first month that is paid.")] = None,
    organization: Annotated[
        str | None, typer.Option(metavar="REF", help="Only for this organization, whatever holds for all others.")
    ] = None,
    *,
    off: Annotated[
        bool, typer.Option("--off", help="Pay nobody any more; with --organization: pay it as all others.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what it pays of closed months.")] = False,
) -> None:
    """Show or set the first month that is paid; what is about months before was settled elsewhere.

    While there is none, payouts are off and what is due is carried. Takes effect with the next month that is closed.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.months import Month

    if month is not None and off:
        raise InvalidInput("Name a month or --off, not both.")
    if month is None and organization is not None and not off:
        raise InvalidInput(f"Name the first month that {organization} is paid for, such as 2026-03, or --off.")
    wanted = None if month is None else Month.parse(month)
    with database("payouts from", agreeing=False) as engine:
        if month is not None or off:
            _set_paid_from(engine, wanted, organization, agreed=yes)
        with engine.connect() as connection:
            _show_paid_from(connection)


def _set_paid_from(engine: Engine, month: Month | None, organization: str | None, *, agreed: bool) -> None:
    """Change it; on a terminal somebody is asked to type the month where closed months are paid by that."""
    from ticketflow_orch.payouts.paid_from import UnconfirmedError, in_words, set_paid_from

    try:
        set_paid_from(engine, month, account(), organization=organization, confirmed=agreed)
    except UnconfirmedError as error:
        if not _is_terminal():
            raise
        typer.echo(f"This pays {in_words(error.pays)} of closed months.")
        typed = str(typer.prompt(f"Type {error.month} to agree")).strip()
        if typed != str(error.month):
            raise InvalidInput(f"{typed!r} is not {error.month}; nothing is changed.") from None
        set_paid_from(engine, month, account(), organization=organization, confirmed=error.pays)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _show_paid_from(connection: Connection) -> None:
    from ticketflow_orch.cli.terminal import moment, plain_table
    from ticketflow_orch.payouts.paid_from import comes_off, in_words, read_paid_from, waiting

    found, owed, history = read_paid_from(connection), waiting(connection), comes_off(connection)
    if found.everybody is None:
        typer.echo("Payouts are off: what is due is carried.")
    else:
        typer.echo(f"Payouts begin with {found.everybody}; what is about months before was settled elsewhere.")
    if found.own:
        plain_table(
            ("organization", "its own", "changed (UTC)", "by"),
            (
                (one.organization, str(one.payouts_from), moment(one.changed_at), one.changed_by or "")
                for one in found.own
            ),
        )
    if found.own_count > len(found.own):
        typer.echo(f"These are the first {len(found.own)} of {found.own_count:,}.", err=True)
    if owed:
        typer.echo(f"Waiting because payouts are off: {in_words(owed)}.")
    if history:
        typer.echo(f"Comes off with the next month that is closed, as settled elsewhere: {in_words(history)}.")


@app.command("pause")
def pause(reason: Reason) -> None:
    """Stop sending payouts, whatever is requested meanwhile; deliveries that have begun are finished."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.payouts import pause as pausing

    with database("payouts") as engine, transaction(engine) as connection:
        pausing.pause(connection, reason, account())
    typer.echo("Payouts are paused; `ticketflow payouts resume` sends them again.")


@app.command("resume")
def resume() -> None:
    """Send payouts again."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.payouts import pause as pausing

    with database("payouts") as engine, transaction(engine) as connection:
        pausing.resume(connection)
    typer.echo("Payouts are sent again.")


@app.command("hold")
def hold(reference: Reference, reason: Reason) -> None:
    """Keep a payout that was never tried from being sent, until it is released."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.payouts import actions

    with database("payouts") as engine, transaction(engine) as connection:
        actions.hold(connection, reference, reason, account())
    typer.echo(f"{reference} is held; `ticketflow payouts release {reference}` sends it.")


@app.command("release")
def release(
    reference: AnyReference = None,
    *,
    month: MonthOption = None,
    currency: CurrencyOption = None,
    anomalies: Annotated[
        bool, typer.Option("--anomalies", help="With --month: what is held for anomalies too; all were looked at.")
    ] = False,
) -> None:
    """Send what is held: one payout, or what was held for review of a month, or of a month in one currency.

    The anomalies that it was held for are accepted with it.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.payouts import actions

    selection = _selection(reference, month, currency)
    with database("payouts") as engine:
        released = actions.release(engine, selection, account(), anomalies=anomalies)
        with engine.connect() as connection:
            kept = actions.held(connection, selection)
    typer.echo(f"{released:,} released." + (f" {actions.STILL_HELD.format(kept)}" if kept else ""))


@app.command("resolve")
def resolve(
    resolution: Annotated[
        Literal["confirmed", "rejected", "again"],
        typer.Option(
            "--as",
            help="confirmed: the provider paid it. rejected: it has not and never will; the money returns to the "
            "balance. again: ask it again, under the same key.",
        ),
    ],
    reference: AnyReference = None,
    *,
    month: MonthOption = None,
    currency: CurrencyOption = None,
    reason: Annotated[str | None, typer.Option(help="Why it is rejected.")] = None,
    provider_ref: Annotated[str | None, typer.Option(help="The provider's own reference of it.")] = None,
) -> None:
    """Settle a payout in doubt by what the provider's people say; `again` also takes a whole month's."""
    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.installation.agreed_routes import require_routes
    from ticketflow_orch.outbox.delivery.configuration import read_delivery
    from ticketflow_orch.payouts import actions
    from ticketflow_orch.payouts.events import EVENT_TYPE
    from ticketflow_orch.settings import settings

    if resolution == "again":
        selection = _selection(reference, month, currency)
        delivery = read_delivery(settings())
        looked_up = delivery.route(EVENT_TYPE).in_doubt == "look_up"
        with database("payouts") as engine:
            with engine.connect() as connection:
                # By other routes the doubt would be forgotten where the relay looks up what is in doubt.
                require_routes(connection, delivery.digest)
            asked = actions.ask_again(engine, selection, account(), looked_up=looked_up)
        typer.echo(f"{asked:,} asked for again.")
        return
    if reference is None:
        raise InvalidInput("Name the payout by its reference; `ticketflow payouts list --state in_doubt` shows them.")
    if resolution == "rejected" and not reason:
        raise InvalidInput(f"Say with --reason why payout {reference} is rejected: its organization will ask.")
    with database("payouts") as engine, transaction(engine) as connection:
        if resolution == "confirmed":
            now = clock.now(settings().fixed_clock)
            actions.confirm(connection, reference, account(), provider_ref, now=now)
        else:
            actions.reject(connection, reference, str(reason), account())
    typer.echo(f"{reference} is {resolution}.")


@app.command("confirm")
def confirm(
    reference: Reference,
    provider_ref: Annotated[str | None, typer.Option(help="The provider's own reference of it.")] = None,
) -> None:
    """Say that a payout was paid, where no provider answers: `resolve --as confirmed`.

    Where two are confirmed under one reference of the provider, --provider-ref gives one its own.
    """
    resolve("confirmed", reference, provider_ref=provider_ref)


@app.command("return")
def return_(reference: Reference, reason: Reason) -> None:
    """Say that a confirmed payout came back; its money returns with the next month that is closed."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.payouts import actions

    with database("payouts") as engine, transaction(engine) as connection:
        actions.return_payout(connection, reference, reason, account())
    typer.echo(f"{reference} is returned; its money is in the balance of the next month that is closed.")


def _selection(reference: str | None, month: str | None, currency: str | None) -> Selection:
    from ticketflow_orch.closing.currency_terms import code
    from ticketflow_orch.months import Month
    from ticketflow_orch.payouts.actions import Selection

    if (reference is None) == (month is None) or (reference is not None and currency is not None):
        raise InvalidInput("Name one payout by its reference, or a month with --month and, if you like, a --currency.")
    return Selection(
        None if month is None else Month.parse(month), None if currency is None else code(currency), reference
    )


def _why(payout: Payout) -> str:
    shared = f"another payout is confirmed under {payout.provider_ref} too" if payout.shares else None
    return "; ".join(one for one in (payout.reason, shared) if one)


def _lines(payout: Payout) -> list[tuple[str, str]]:
    from ticketflow_orch.cli.terminal import here, minute
    from ticketflow_orch.formatting.money import written_out

    return [
        ("payout", payout.reference),
        ("organization", payout.organization),
        ("month", str(payout.month)),
        ("amount", f"{written_out(payout.amount, payout.exponent)} {payout.currency}"),
        ("state", payout.state),
        ("why", _why(payout)),
        ("provider's reference", payout.provider_ref or ""),
        ("decided by", payout.decided_by or ""),
        (f"written ({here()})", minute(payout.created_at)),
        ("by run", payout.run_id or ""),
        (f"first attempt ({here()})", minute(payout.first_attempt_at)),
        (f"answered ({here()})", minute(payout.answered_at)),
        ("money back in", str(payout.returned_month or "")),
        ("delivery", f"{payout.delivery}, {payout.attempts} attempts" if payout.delivery else ""),
        ("last error", payout.last_error or ""),
    ]
