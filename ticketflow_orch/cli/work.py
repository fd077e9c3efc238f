"""`ticketflow work`: what the schedules by the minute and day would do now, and doing it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ticketflow_orch.cli.exit_codes import FAILED
from ticketflow_orch.cli.options import DryRun
from ticketflow_orch.formatting.counts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Engine

    from ticketflow_orch.jobs.firings import Firing
    from ticketflow_orch.ticketing.lifecycle import LifecycleRules

app = typer.Typer(
    help="Do the work of a schedule by hand, or say what it would do. A schedule that does it too does no harm.",
    no_args_is_help=True,
)


@app.command("expire")
def expire(*, dry_run: DryRun = False) -> None:
    """Expire the reservations whose time is up, and report the payments that outlasted their grace."""
    from dataclasses import asdict

    from ticketflow_orch.cli.session import database
    from ticketflow_orch.ticketing import reservations

    with database("work expire") as engine:
        rules = _rules()
        if dry_run:
            would = reservations.would_expire(engine, rules)
            typer.echo(
                f"{counted(would.reservations, 'reservation')} would be expired, "
                f"{counted(would.stuck, 'payment')} reported as stuck."
            )
            _name(would.first)
            return
        _do(engine, "expire_reservations", lambda: asdict(reservations.expire_reservations(engine, rules)))


@app.command("close")
def close(*, dry_run: DryRun = False) -> None:
    """Close the events whose end is past, and expire what was still held for them. Months are closed elsewhere."""
    from dataclasses import asdict

    from ticketflow_orch.cli.session import database
    from ticketflow_orch.ticketing import events

    with database("work close") as engine:
        rules = _rules()
        if dry_run:
            would = events.would_close(engine, rules)
            typer.echo(
                f"{counted(would.events, 'event')} would be closed, and "
                f"{counted(would.reservations, 'reservation')} of theirs expired."
            )
            _name(would.first)
            return
        _do(engine, "close_events", lambda: asdict(events.close_events(engine, rules)))


@app.command("remind")
def remind(*, dry_run: DryRun = False) -> None:
    """Queue the reminders that are due, tell what changed since, and take up mails that may go by now."""
    from dataclasses import asdict
    from functools import partial

    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.installation import decided
    from ticketflow_orch.event_handlers import KINDS
    from ticketflow_orch.periods.two_clocks import judged_at
    from ticketflow_orch.settings import settings
    from ticketflow_orch.ticketing import reminders, reminding

    with database("work remind") as engine:
        with engine.connect() as connection:
            now = judged_at(connection, clock.now(settings().fixed_clock), "remind nobody")
            rules = reminders.ReminderRules.configured(decided(connection, settings()), now)
            if dry_run:
                for kind, number in reminders.due_reminders(connection, rules).items():
                    typer.echo(f"{kind}: {counted(number, 'reservation')} would be decided about.")
                return
        work = partial(reminding.remind, engine, rules, KINDS, cancellations=settings().mail_cancellations)
        _do(engine, "send_reminders", lambda: asdict(work()))


def _rules() -> LifecycleRules:
    from ticketflow_orch import clock
    from ticketflow_orch.local.account import account
    from ticketflow_orch.settings import settings
    from ticketflow_orch.ticketing.lifecycle import LifecycleRules

    return LifecycleRules.configured(settings(), clock.now(settings().fixed_clock), f"by hand: {account()}")


def _do(engine: Engine, job: str, work: Callable[[], Mapping[str, object]]) -> None:
    """Do the work under a claim of its own, so that it is listed with all others."""
    from ticketflow_orch.jobs.run_once import run_once

    done = run_once(engine, _firing(job), work)
    figures = ", ".join(
        f"{value:,} {name.replace('_', ' ')}" for name, value in done.result.items() if isinstance(value, int)
    )
    typer.echo(f"{job}: {figures or 'done'}.")
    bad = done.result.get("bad") or ()
    for row in bad:
        typer.echo(f"left out: {row['name'] or row['id']}: {row['error']}", err=True)
    if bad:
        raise typer.Exit(FAILED)


def _firing(job: str) -> Firing:
    from datetime import UTC, datetime
    from uuid import uuid4

    from ticketflow_orch.jobs.firings import firing_by_hand

    return firing_by_hand(job, str(uuid4()), {}, datetime.now(UTC))


def _name(first: tuple[str, ...]) -> None:
    if first:
        typer.echo(f"The first: {', '.join(first)}.")
