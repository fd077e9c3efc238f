"""`ticketflow demo`: a year of a platform's life, settled, closed and paid before your eyes, statements included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import Engine

    from ticketflow_orch.cli.month_runs import SpanRun
    from ticketflow_orch.months import Month

_TAGS = {"ticketflow/demo": "true"}
_LONGEST_DELIVERY = 20.0
# Where the demo's events go, for whatever process works in its home.
DELIVERY = """\
# Written by `ticketflow demo`: its payouts are confirmed by a provider that pays nobody.
[destinations.file]
transport = "file"

[destinations.provider]
transport = "demo"

[routes.default]
destination = "file"

[routes.PayoutRequested]
destination = "provider"
"""


def demo(
    organizations: Annotated[
        int, typer.Option(min=10, max=1_000_000, help="How many organizations the data set has.")
    ] = 400,
    months: Annotated[int, typer.Option(min=1, max=120, help="How many months it spans.")] = 12,
    *,
    finished: Annotated[bool, typer.Option("--finished", help="Settle, close and pay every month.")] = False,
) -> None:
    """Load a demo data set that ends with the last full month; settle, close and pay its months, write statements.

    Three months, and what else the guide for analysts is about, are left to do, unless it is to be --finished. Nothing
    leaves the machine: what would go to the outside world is written to a file. Repeating it changes nothing and says
    so.
    """
    from ticketflow_orch.cli.demo_output import print_work
    from ticketflow_orch.cli.session import instance_and_database
    from ticketflow_orch.cli.terminal import console, rows_shown
    from ticketflow_orch.clock import now
    from ticketflow_orch.demo_data import load_demo, require_no_others
    from ticketflow_orch.demo_data.work import last_finished
    from ticketflow_orch.months import Month
    from ticketflow_orch.settings import settings

    out = console()
    business_now = now(settings().fixed_clock)
    # The month before last is over in every zone on earth, whatever hour it is here.
    last = Month.of_instant(business_now, "Pacific/Pago_Pago").previous()
    _require_no_real_destinations()
    with instance_and_database("demo") as engine:
        first = Month.parse(settings().first_month)
        _require_room(first, last, months, organizations, finished=finished)
        require_no_others(engine)
        decide(engine, first)
        with rows_shown() as progress:
            loaded = load_demo(engine, last, months=months, organizations=organizations, progress=progress)
        out.print(str(loaded))
        leaves_work = not finished and _tells_stories(engine, first, loaded.last_month, new=loaded.loaded)
        green = _finish_months(engine, business_now, first, loaded.last_month, leaves_work=leaves_work)
        if leaves_work or not green:
            print_work(engine, business_now, first, last_finished(loaded.last_month))
    out.print("\nNext: [bold]make ui[/bold] opens it in Dagster at http://127.0.0.1:3000.")
    raise typer.Exit(DONE if green else FAILED)


def _finish_months(engine: Engine, now: datetime, first: Month, last: Month, *, leaves_work: bool) -> bool:
    """Settle, close and pay what is due, and print what came of it; returns whether all went well.

    Where the demo `leaves_work`, its last months, which end with `last`, are left alone, and its stories are begun.
    """
    # It loads the code location, which has the months of the database by now.
    from ticketflow_orch.cli.demo_output import print_statement, print_totals
    from ticketflow_orch.cli.month_runs import settle_months
    from ticketflow_orch.cli.settle import report
    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.demo_data.work import ARENA, last_finished, leave_work
    from ticketflow_orch.local.account import account
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.due import due_months, months_over

    with engine.connect() as connection:
        due = due_months(connection, now, first)
        over = months_over(connection, now, first)
    if leaves_work:
        finishing = last_finished(last)
        due, over = (tuple(month for month in months if month <= finishing) for months in (due, over))
    settled = list(settle_months(engine, due, tags=_TAGS))
    green = [report(run) for run in settled].count(False) == 0
    print_totals(engine, over[0], over[-1])
    books = close_pay_and_state(engine, now, first, over[-1], ARENA if leaves_work else None) if green else []
    green = green and all(run.succeeded and not run.red_checks for run in books)
    delivered = deliver(engine)
    # Afterwards, for parking holds what was not sent.
    if leaves_work and green:
        leave_work(engine, last, account(), settings().home)
    if green:
        print_statement(engine, over[-1])
    if green and not settled and not books and not delivered:
        console().print("\nEverything had been done before: this run changed nothing.")
    return green


def _require_room(first: Month, last: Month, months: int, organizations: int, *, finished: bool) -> None:
    """Raise InvalidInput where so many months or organizations are not to be had, or do not suffice."""
    from ticketflow_orch.demo_data.work import LEAST_MONTHS, LEAST_ORGANIZATIONS
    from ticketflow_orch.errors import InvalidInput
    from ticketflow_orch.months import months_between

    partitions = len(list(months_between(first, last)))
    if months > partitions:
        raise InvalidInput(
            f"{first} to {last} are {partitions} months, not {months}; `ticketflow installation set first_month`."
        )
    for name, given, least in (("months", months, LEAST_MONTHS), ("organizations", organizations, LEAST_ORGANIZATIONS)):
        if given < least and not finished:
            raise InvalidInput(
                f"A demo that leaves work has at least {least} {name}, not {given}; --finished does with fewer."
            )


def _require_no_real_destinations() -> None:
    from ticketflow_orch.errors import PreconditionFailed
    from ticketflow_orch.outbox.delivery.configuration import HOME_FILE
    from ticketflow_orch.settings import settings

    sentence = "The demo pays organizations that do not exist, and {} names real destinations; {} for the demo."
    if settings().delivery is not None:
        raise PreconditionFailed(sentence.format(f"TICKETFLOW_DELIVERY={settings().delivery}", "unset it"))
    own = settings().home / HOME_FILE
    if own.is_file() and own.read_text("utf-8") != DELIVERY:
        raise PreconditionFailed(sentence.format(own, "move it away"))


def decide(engine: Engine, first: Month) -> None:
    """Let the demo's organizations be paid from `first` on, by a provider of its own, in whatever process.

    A decision from when on people are paid, made before, holds for the demo too.
    """
    import os

    from ticketflow_orch.installation.agreed_routes import accept_routes
    from ticketflow_orch.local.account import account
    from ticketflow_orch.outbox.delivery.configuration import HOME_FILE, read_routes
    from ticketflow_orch.payouts.paid_from import first_paid_month, set_paid_from
    from ticketflow_orch.settings import settings

    with engine.connect() as connection:
        decided = first_paid_month(connection)
    if decided is None:
        set_paid_from(engine, first, account(), confirmed=True)
    own = settings().home / HOME_FILE
    if not own.is_file():
        draft = own.with_name(f"{HOME_FILE}.{os.getpid()}")
        draft.write_text(DELIVERY, "utf-8")
        draft.replace(own)
    accept_routes(engine, read_routes(settings()), account())


def _tells_stories(engine: Engine, first: Month, last: Month, *, new: bool) -> bool:
    """Whether this demo leaves work: it did before, or is new, and then has its stories loaded."""
    from ticketflow_orch.demo_data.work import LEAST_MONTHS, has_stories, is_begun, tell_stories

    if has_stories(engine):
        return True
    if is_begun(engine) and not new:
        return False
    story = last
    for _ in range(LEAST_MONTHS - 1):
        story = story.previous()
    tell_stories(engine, max(story, first), last)
    return True


def close_pay_and_state(
    engine: Engine, now: datetime, first_month: Month, last: Month, kept: str | None
) -> list[SpanRun]:
    """Close all months up to `last` that may be, request what they pay, write the statements of `last`.

    Of what is held for review, what is of organization `kept` stays so. Returns what ran. Statements of the months
    before would take longer than anybody watches; the schedule writes them.
    """
    from ticketflow_orch.cli.month_runs import CLOSING_JOB, PAYOUTS_JOB, STATEMENTS_JOB
    from ticketflow_orch.closing.turn import months_to_close
    from ticketflow_orch.payouts.request import payouts_due_months
    from ticketflow_orch.statements.invariants import months_to_issue

    with engine.connect() as connection:
        closing = [month for month in months_to_close(connection, now, first_month) if month <= last]
    ran = _ran(CLOSING_JOB, closing, "closed, with {balances written:,} balances")
    with engine.connect() as connection:
        paying = [month for month in payouts_due_months(connection) if month <= last]
    paid = _ran(PAYOUTS_JOB, paying, "requested: {requested:,} payouts, and {held:,} held for review")
    if paid:
        _release_but(engine, kept)
    ran += paid
    with engine.connect() as connection:
        stating = [month for month in months_to_issue(connection) if month == last]
    return ran + _ran(STATEMENTS_JOB, stating, "issued: {statements:,} statements")


def _release_but(engine: Engine, kept: str | None) -> None:
    """Have a look at what is held for review, as a person would, and release it but for the organization `kept`.

    A made-up year has months that are more than three times as good as those before.
    """
    from ticketflow_orch.local.account import account
    from ticketflow_orch.payouts.actions import Selection, release
    from ticketflow_orch.payouts.queries import payouts

    with engine.connect() as connection:
        held = payouts(connection, state="HELD", limit=10_000)
    for month, currency in sorted({(one.month, one.currency) for one in held if one.organization != kept}):
        release(engine, Selection(month=month, currency=currency), account())


def _ran(job: str, months: Sequence[Month], sentence: str) -> list[SpanRun]:
    """The run of a job over months, if there are any, and a line that says what came of it."""
    from ticketflow_orch.cli.month_runs import run_span
    from ticketflow_orch.cli.terminal import console

    if not months:
        return []
    run = run_span(job, months, _TAGS)
    span = str(months[0]) if len(months) == 1 else f"{months[0]} to {months[-1]}"
    out = console()
    if run.succeeded:
        out.print(f"{span} {sentence.format_map(run.counted)}")
    else:
        out.print(f"[red]{span} failed:[/red] {run.why}", soft_wrap=True)
    for check in run.red_checks:
        out.print(f"        [red]check {check}[/red]")
    return [run]


def deliver(engine: Engine) -> int:
    """Deliver what is due, which all goes to a file, and say so; returns how much it was.

    The demo's provider confirms each payout.
    """
    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.event_handlers import KINDS
    from ticketflow_orch.installation.agreed_routes import agreeing
    from ticketflow_orch.outbox.delivery.configuration import read_delivery
    from ticketflow_orch.outbox.relay import drain
    from ticketflow_orch.payouts.queries import confirmed_payouts
    from ticketflow_orch.settings import settings

    delivery = read_delivery(settings())
    try:
        agreed = agreeing(delivery.digest)
        delivered = drain(engine, delivery, KINDS, budget=_LONGEST_DELIVERY, agreed=agreed).delivered
    finally:
        delivery.close()
    if delivered:
        file = settings().home / "outbox.jsonl"
        console().print(
            f"{delivered:,} events for the outside world are in {file}; nothing has left this machine", soft_wrap=True
        )
        with engine.connect() as connection:
            confirmed = confirmed_payouts(connection)
        console().print(f"{confirmed:,} payouts are confirmed, by the demo's own provider, which pays nobody")
    return delivered
