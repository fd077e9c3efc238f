"""`ticketflow mail`: addresses that no mail goes to, what came back, and mails that are kept back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.local.account import account

if TYPE_CHECKING:
    from ticketflow_orch.mail.bounces import Report

app = typer.Typer(help="Addresses that no mail goes to any more, and mails that are kept back.", no_args_is_help=True)
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="An e-mail address, such as buyer@example.com.")]


@app.command("suppressed")
def suppressed(
    address: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that were cleared too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the last ones.")] = 100,
) -> None:
    """List the addresses that no mail goes to: bounced, complained, unsubscribed, or suppressed by hand."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import moment, plain_table
    from ticketflow_orch.mail.suppression import list_suppressed
    from ticketflow_orch.outbox.delivery import printable

    with database("mail") as engine, engine.connect() as connection:
        found = list_suppressed(connection, address=address, everything=everything, limit=limit)
    if not found:
        typer.echo("No address is suppressed." if address is None else f"{address} is not suppressed.")
        return
    plain_table(
        ("address", "reason", "since (UTC)", "by", "cleared (UTC)", "cleared by", "mail", "what was said"),
        (
            (
                entry.address,
                entry.reason.lower().replace("_", " "),
                moment(entry.suppressed_at),
                entry.suppressed_by,
                moment(entry.cleared_at),
                entry.cleared_by or "",
                "" if entry.outbox_event_id is None else str(entry.outbox_event_id),
                printable(entry.detail),
            )
            for entry in found
        ),
    )


@app.command("suppress")
def suppress(
    address: Address, reason: Annotated[str, typer.Option(help="Shown beside the address in `mail suppressed`.")]
) -> None:
    """Send no mail to an address any more, until it is cleared."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.mail import suppression

    by_hand = suppression.Reason.BY_HAND
    with database("mail") as engine, transaction(engine) as connection:
        new = suppression.suppress(connection, address, by_hand, reason, by=account())
    typer.echo(f"No mail goes to {address} any more." if new else f"{address} is suppressed by hand already.")


@app.command("clear")
def clear(address: Address) -> None:
    """Send mails to an address again; what was kept back for it goes, unless it is too late."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.mail import suppression

    with database("mail") as engine, transaction(engine) as connection:
        suppression.clear(connection, address, account())
    typer.echo(f"Mails go to {address} again.")


@app.command("bounces")
def bounces(
    mailbox: Annotated[Path, typer.Argument(metavar="MAILBOX", help="An mbox file, a Maildir, or the file of a mail.")],
) -> None:
    """Suppress the addresses whose mails came back or were complained about, by the reports in a mailbox.

    Reading one twice changes nothing.
    """
    from ticketflow_orch.mail.bounces import read_mailbox

    _take_in(list(read_mailbox(mailbox)))


@app.command("told")
def told(
    file: Annotated[
        typer.FileText,
        typer.Argument(
            metavar="FILE", encoding="utf-8", errors="replace", help="A JSON object a line; - for the standard input."
        ),
    ],
) -> None:
    """Suppress the addresses that a provider's webhook reported: SES, Postmark, or objects in our own words."""
    from ticketflow_orch.mail.bounces import read_notifications

    _take_in(list(read_notifications(file)))


@app.command("kept-back")
def kept_back(limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50) -> None:
    """List mails that are not sent for a reason that may pass; they go by themselves when it has."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import moment, note_limit, plain_table
    from ticketflow_orch.outbox.admin import list_kept_back
    from ticketflow_orch.outbox.delivery import printable

    with database("mail") as engine, engine.connect() as connection:
        found = list_kept_back(connection, limit)
    if not found:
        typer.echo("No mail is kept back.")
        return
    plain_table(
        ("id", "type", "about", "kept back (UTC)", "reason"),
        (
            (str(one.event_id), one.event_type, one.aggregate_id, moment(one.ended_at), printable(one.last_error or ""))
            for one in found
        ),
    )
    note_limit(len(found), limit)


@app.command("retry")
def retry() -> None:
    """Look at all mails that are kept back now, as the schedule of reminders does, and queue those that may go."""
    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.event_handlers import KINDS
    from ticketflow_orch.outbox.relay.reconsidering import reconsider
    from ticketflow_orch.settings import settings

    with database("mail") as engine:
        taken = reconsider(engine, KINDS, clock.now(settings().fixed_clock))
    typer.echo(f"{counted(taken, 'mail')} to be sent after all.")


def _take_in(reports: Sequence[Report | None]) -> None:
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.mail.bounces import take_in

    with database("mail") as engine, transaction(engine) as connection:
        read = take_in(connection, reports, account())
    typer.echo(
        f"{counted(read.suppressed, 'report')} taken in, {read.known:,} known before, "
        f"{read.ignored:,} about no mail of ours or nothing that suppresses an address."
    )
