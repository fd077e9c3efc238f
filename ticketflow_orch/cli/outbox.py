"""`ticketflow outbox`: what waits to be delivered to the outside world, and what people decide about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ticketflow_orch.cli.exit_codes import FAILED
from ticketflow_orch.cli.options import AsJson, DryRun
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.local.account import account

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from ticketflow_orch.outbox.admin import Attempt, Detail
    from ticketflow_orch.outbox.bulk import Which
    from ticketflow_orch.outbox.stops import StopKind

_NAMED = 20

app = typer.Typer(
    help="Show and deliver what waits in the outbox, and decide about what is stuck.", no_args_is_help=True
)
EventId = Annotated[str, typer.Argument(metavar="ID", help="The event's id, as `outbox list` shows it.")]
EventType = Annotated[str | None, typer.Option("--type", help="Only of this event type.")]
AnyEventId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The event's id, as `outbox list` shows it; without it: many.")
]
OlderThan = Annotated[
    str | None, typer.Option(metavar="LENGTH", help="Only what occurred longer ago, such as P3D, or in seconds.")
]
ErrorText = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only where the last error has this text in it.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to how many they are; without it they are only counted.")]
Destination = Annotated[str | None, typer.Option(help="A destination of the configuration of delivery.")]


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only in this state, such as DEAD, the last ones first.")] = None,
    event_type: EventType = None,
    aggregate: Annotated[str | None, typer.Option(metavar="ID", help="Only of the aggregate of this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    *,
    as_json: AsJson = False,
) -> None:
    """List events that are not delivered, the oldest first."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, moment, note_limit, plain_table
    from ticketflow_orch.outbox.admin import list_events
    from ticketflow_orch.outbox.delivery import printable

    with database("outbox") as engine, engine.connect() as connection:
        found = list_events(
            connection, state=state and state.upper(), event_type=event_type, aggregate=aggregate, limit=limit
        )
    if as_json:
        json_lines(found)
        return
    if not found:
        typer.echo("There is no such event." if state or event_type or aggregate else "Everything is delivered.")
        return
    plain_table(
        ("id", "type", "aggregate", "state", "attempts", "occurred (UTC)", "due (UTC)", "ended (UTC)", "error"),
        (
            (
                str(event.event_id),
                event.event_type,
                f"{event.aggregate_type} {event.aggregate_id}",
                event.state,
                str(event.attempts),
                moment(event.occurred_at),
                moment(event.available_at),
                moment(event.ended_at),
                printable(event.last_error or ""),
            )
            for event in found
        ),
    )
    note_limit(len(found), limit)


@app.command("show")
def show(event_id: EventId) -> None:
    """Show all that is known of an event: payload, attempts, the last answer, the bytes that are sent."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.event_handlers import KINDS
    from ticketflow_orch.outbox import admin

    with database("outbox") as engine, engine.connect() as connection:
        found = admin.show(connection, KINDS, admin.parse_event_id(event_id))
        _print(found, admin.attempts(connection, found.event.event_id))


@app.command("redrive")
def redrive(
    event_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead events.")] = None,
    event_type: EventType = None,
    destination: Destination = None,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only what died at or after it; ISO 8601 with an offset.")
    ] = None,
    *,
    dry_run: DryRun = False,
) -> None:
    """Retry dead events, under the same ids, with a new budget of attempts."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.clock import parse_instant
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.outbox import admin
    from ticketflow_orch.outbox.delivery.configuration import read_delivery
    from ticketflow_orch.settings import settings

    with database("outbox") as engine, transaction(engine) as connection:
        types = admin.chosen_types(connection, read_delivery(settings()), event_type, destination)
        choice = admin.Choice(
            [admin.parse_event_id(one) for one in event_ids or ()],
            types,
            None if since is None else parse_instant(since),
        )
        number = (admin.would_redrive if dry_run else admin.redrive)(connection, choice)
    would = "would be" if dry_run else "to be"
    typer.echo(f"{counted(number, 'event')} {would} delivered again.")


@app.command("hold")
def hold(
    event_id: AnyEventId = None,
    event_type: EventType = None,
    older_than: OlderThan = None,
    error: ErrorText = None,
    *,
    yes: Yes = False,
) -> None:
    """Keep a pending event, and with it the later ones of its aggregate, until it is released; or many."""
    from ticketflow_orch.outbox import admin

    _decide(
        event_id, ("PENDING",), _Many(event_type, older_than, error), admin.hold, agreed=yes,
        done="held", said="is held; later ones of its aggregate wait for it.",
    )  # fmt: skip


@app.command("release")
def release(
    event_id: AnyEventId = None,
    event_type: EventType = None,
    older_than: OlderThan = None,
    error: ErrorText = None,
    *,
    yes: Yes = False,
) -> None:
    """Let a held event go, or many."""
    from ticketflow_orch.outbox import admin

    _decide(
        event_id, ("HELD",), _Many(event_type, older_than, error), admin.release, agreed=yes,
        done="released", said="is due.",
    )  # fmt: skip


@app.command("resolve")
def resolve(
    event_id: AnyEventId = None,
    event_type: EventType = None,
    older_than: OlderThan = None,
    error: ErrorText = None,
    *,
    resolution: Annotated[
        str, typer.Option("--as", help="delivered, again (it was not: send it again), dead or dropped.")
    ],
    yes: Yes = False,
) -> None:
    """Say what became of an event in doubt or dead, or of many; drop what is held, take up what is suppressed."""
    from typing import get_args

    from ticketflow_orch.outbox import admin

    if resolution not in get_args(admin.Resolution):
        raise InvalidInput(f"--as {resolution} is unknown; say delivered, again, dead or dropped.")
    states = ("IN_DOUBT",) if resolution == "dead" else ("IN_DOUBT", "DEAD")
    _decide(
        event_id, states, _Many(event_type, older_than, error), _resolving(resolution), agreed=yes,
        done=f"resolved as {resolution}", said=f"is resolved: {resolution}.",
    )  # fmt: skip


@app.command("destinations")
def destinations() -> None:
    """List how each destination does: since when nothing arrives there, when it is tried again, what it is sent."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import moment, plain_table
    from ticketflow_orch.outbox import admin
    from ticketflow_orch.outbox.delivery import printable
    from ticketflow_orch.outbox.delivery.configuration import read_delivery
    from ticketflow_orch.settings import settings

    with database("outbox") as engine, engine.connect() as connection:
        found = admin.destinations(connection, read_delivery(settings()))
    plain_table(
        ("name", "state", "since (UTC)", "not before (UTC)", "events/s at most", "error"),
        (
            (
                one.name,
                "stopped" if one.stopped else "failing" if one.failing_since else "well",
                moment(one.failing_since),
                moment(one.next_at),
                f"{one.rate:.3g}" if one.rate else "",
                printable(one.error or "") if one.failing_since else "",
            )
            for one in found
        ),
    )


@app.command("drop")
def drop(
    event_id: AnyEventId = None,
    event_type: EventType = None,
    older_than: OlderThan = None,
    error: ErrorText = None,
    *,
    yes: Yes = False,
) -> None:
    """Never send an event that is dead, in doubt or held; or many. The business learns of it as of any other end."""
    _decide(
        event_id, ("DEAD", "IN_DOUBT", "HELD"), _Many(event_type, older_than, error), _resolving("dropped"), agreed=yes,
        done="dropped", said="is dropped: it is never sent.",
    )  # fmt: skip


@app.command("stops")
def stops(*, as_json: AsJson = False) -> None:
    """List what is not delivered until somebody resumes it."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, moment, plain_table
    from ticketflow_orch.outbox import stops

    with database("outbox") as engine, engine.connect() as connection:
        found = stops.stops(connection)
    if as_json:
        json_lines(found)
        return
    if not found:
        typer.echo("Nothing is stopped.")
        return
    plain_table(
        ("what", "name", "since (UTC)", "by", "reason"),
        (
            (stop.kind.lower().replace("_", " "), stop.name, moment(stop.stopped_at), stop.stopped_by, stop.reason)
            for stop in found
        ),
    )


@app.command("stop")
def stop(
    reason: Annotated[str, typer.Option(help="For those who find it stopped.")],
    event_type: EventType = None,
    destination: Destination = None,
) -> None:
    """Deliver nothing of a type, or to a destination, until it is resumed."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.outbox import admin

    kind, name = _stoppable(event_type, destination)
    with database("outbox") as engine, transaction(engine) as connection:
        admin.stop(connection, kind, name, reason, account())
    typer.echo(f"{name} is stopped; deliveries that have begun are finished.")


@app.command("resume")
def resume(event_type: EventType = None, destination: Destination = None) -> None:
    """Deliver again what was stopped."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.outbox import admin

    kind, name = _stoppable(event_type, destination)
    with database("outbox") as engine, transaction(engine) as connection:
        admin.resume(connection, kind, name)
    typer.echo(f"{name} is resumed.")


@app.command("deliver")
def deliver(
    budget: Annotated[
        float, typer.Option(min=0.1, max=86_400, metavar="SECONDS", help="Begin nothing more after it.")
    ] = 50,
    forever: Annotated[
        bool, typer.Option("--forever", help="Stay, and deliver what comes as soon as it does, until SIGTERM.")
    ] = False,
    grace: Annotated[
        float,
        typer.Option(min=0, max=86_400, metavar="SECONDS", help="With --forever: how long SIGTERM waits for answers."),
    ] = 60,
) -> None:
    """Deliver what is due now, from this machine, beside whatever else is delivering."""
    from dataclasses import asdict

    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.event_handlers import KINDS
    from ticketflow_orch.installation.agreed_routes import agreeing
    from ticketflow_orch.outbox.delivery.configuration import read_delivery
    from ticketflow_orch.outbox.relay import RESIDENT, connections_for, drain
    from ticketflow_orch.settings import settings

    delivery = read_delivery(settings())
    name = RESIDENT if forever else "outbox deliver"
    stop = _stop_on_signal(grace) if forever else None
    try:
        with database(name, connections_for(delivery)) as engine:
            now, agreed = settings().fixed_clock, agreeing(delivery.digest)
            if forever:
                typer.echo(f"Delivering to {', '.join(sorted(delivery.destinations))} until SIGTERM.", err=True)
            drained = drain(
                engine,
                delivery,
                KINDS,
                budget=budget,
                now=lambda: clock.now(now),
                agreed=agreed,
                stop=stop,
                resident=forever,
            )
    finally:
        delivery.close()
    counted = {name.replace("_", " "): value for name, value in asdict(drained).items() if name != "seconds"}
    typer.echo(", ".join(f"{value:,} {name}" for name, value in counted.items() if value) or "Nothing is due.")


def _stop_on_signal(grace: float) -> threading.Event:
    """Set by SIGTERM and SIGINT, so that nothing more is begun; after `grace` seconds no answer is waited for."""
    import logging
    import os
    import signal
    import threading

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    stop = threading.Event()

    def leave() -> None:
        typer.echo("Some deliveries had no answer yet; they are taken up when their leases are over.", err=True)
        # Whatever waits for them cannot be called back.
        os._exit(0)

    def end(*_: object) -> None:
        if not stop.is_set():
            stop.set()
            waiting = threading.Timer(grace, leave)
            waiting.daemon = True
            waiting.start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    return stop


def _resolving(resolution: str) -> Callable[[Connection, UUID], None]:
    from typing import cast

    from ticketflow_orch.event_handlers import KINDS
    from ticketflow_orch.outbox import admin

    known = cast("admin.Resolution", resolution)

    def decide(connection: Connection, event_id: UUID) -> None:
        admin.resolve(connection, KINDS, event_id, known, account())

    return decide


class _Many(NamedTuple):
    """What is asked of many events, as it was typed."""

    event_type: str | None
    older_than: str | None
    error: str | None


def _decide(
    event_id: str | None,
    states: Sequence[str],
    many: _Many,
    decide: Callable[[Connection, UUID], None],
    *,
    agreed: bool,
    done: str,
    said: str,
) -> None:
    """Decide about one event, of which `said` is printed, or about `many` in these states, which are then `done`."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.outbox.admin import parse_event_id
    from ticketflow_orch.outbox.bulk import Which
    from ticketflow_orch.settings import parse_length

    if event_id is None:
        longer_ago = None if many.older_than is None else parse_length(many.older_than)
        _about_many(Which(states, many.event_type, longer_ago, many.error), done, decide, agreed=agreed)
        return
    if any(one is not None for one in many):
        raise InvalidInput("Name an event's id, or --type, --older-than and --error for many; not both.")
    with database("outbox") as engine, transaction(engine) as connection:
        decide(connection, parse_event_id(event_id))
    typer.echo(f"Event {event_id} {said}")


def _about_many(which: Which, done: str, decide: Callable[[Connection, UUID], None], *, agreed: bool) -> None:
    """Count the events that are `which`, by type and state, and decide about them once somebody has `agreed`."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import moment, plain_table
    from ticketflow_orch.outbox import bulk
    from ticketflow_orch.outbox.delivery import printable

    with database("outbox") as engine:
        with engine.connect() as connection:
            kinds = bulk.count(connection, which)
        if not kinds:
            typer.echo("There is no such event.")
            return
        plain_table(
            ("type", "state", "events", "since (UTC)", "error of one"),
            (
                (kind.event_type, kind.state, f"{kind.events:,}", moment(kind.since), printable(kind.error or ""))
                for kind in kinds
            ),
        )
        if not agreed:
            events = counted(sum(kind.events for kind in kinds), "event")
            typer.echo(f"{events} would be {done}; repeat the command with --yes to agree.")
            return
        number, refused = bulk.decide(engine, which, decide)
    typer.echo(f"{counted(number, 'event')} {done}.")
    for why in refused[:_NAMED]:
        typer.echo(f"left: {why}", err=True)
    if refused:
        raise typer.Exit(FAILED)


def _stoppable(event_type: str | None, destination: str | None) -> tuple[StopKind, str]:
    from ticketflow_orch.outbox.admin import require_destination
    from ticketflow_orch.outbox.delivery.configuration import read_delivery
    from ticketflow_orch.settings import settings

    if event_type is not None and destination is None:
        return "EVENT_TYPE", event_type
    if destination is not None and event_type is None:
        require_destination(read_delivery(settings()), destination)
        return "DESTINATION", destination
    raise InvalidInput("Name one of --type and --destination.")


def _print(detail: Detail, attempts: Sequence[Attempt]) -> None:
    import json

    from ticketflow_orch.cli.terminal import moment
    from ticketflow_orch.outbox.delivery import printable

    event = detail.event
    for label, value in (
        ("id", str(event.event_id)),
        ("type", event.event_type),
        ("aggregate", f"{event.aggregate_type} {event.aggregate_id}"),
        ("key", detail.dedupe_key),
        ("state", event.state),
        ("occurred (UTC)", moment(event.occurred_at)),
        ("due (UTC)", moment(event.available_at)),
        ("attempts", f"{event.attempts}, {detail.attempt} in all" if detail.attempt else "none"),
        ("first attempt (UTC)", moment(detail.first_attempt_at)),
        ("last attempt (UTC)", moment(event.last_attempt_at)),
        ("addressed to", detail.destination or ""),
        ("in doubt since (UTC)", moment(detail.doubtful_since)),
        ("held by", f"{detail.owner} until {moment(detail.lease_until)}" if detail.owner else ""),
        ("ended (UTC)", moment(event.ended_at)),
        ("error", event.last_error or ""),
        ("answer", detail.last_response or ""),
        ("payload", json.dumps(detail.payload, ensure_ascii=False)),
    ):
        if value:
            typer.echo(f"{label}: {printable(value)}")
    for one in attempts:
        said = " ".join(part for part in (one.error, one.response) if part)
        where = f"to {one.destination} by {one.owner}"
        typer.echo(f"attempt {one.attempt}: {moment(one.ended_at)} {printable(f'{where}, {one.outcome}: {said}')}")
    if detail.body is not None:
        typer.echo("body:")
        for line in detail.body.decode("utf-8", "backslashreplace").splitlines():
            typer.echo(f"  {printable(line)}")
