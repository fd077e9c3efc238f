"""An outbox with events in it, destinations that do what a test says, and a relay between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, Row, text

from tests.support.rows import instant
from tests.support.sessions import becomes
from ticketflow_orch.outbox.delivery import Commit, Message, Outcome, Transport, Verdict
from ticketflow_orch.outbox.delivery.configuration import Delivery, Route
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay import Backoff, Drained, Patience, drain

NOW = instant("2026-06-02T02:30")
DELIVERED = Outcome(Verdict.DELIVERED, status=200, response="thanks")
REFUSED = Outcome(Verdict.REFUSED, "The receiver is busy.", 503, "come back later")
REJECTED = Outcome(Verdict.REJECTED, "The receiver rejects it for good.", 400, "no such thing")
GONE = Outcome(Verdict.GONE, "The receiver is gone.", 410)
UNKNOWN = Outcome(Verdict.UNKNOWN, "The answer was lost.")
UNREACHED = Outcome(Verdict.UNREACHED, "Nobody answers.")
THROTTLED = Outcome(Verdict.THROTTLED, "Too many.", 429)
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
AT_ONCE = Backoff(base=timedelta(0), cap=timedelta(0))
IMPATIENT = Patience(first=timedelta(0), longest=timedelta(0))


class Receiver:
    """A destination in this process: remembers what it was sent and answers as `answer` says."""

    def __init__(
        self,
        answer: Callable[[Message], Outcome] = lambda _: DELIVERED,
        known: Callable[[Message], Outcome] = lambda _: UNKNOWN,
    ) -> None:
        self.answer = answer
        self.known = known
        self.sent: list[Message] = []
        self.asked: list[Message] = []
        self._lock = threading.Lock()

    def send(self, message: Message, commit: Commit) -> Outcome:
        commit()
        with self._lock:
            self.sent.append(message)
        return self.answer(message)

    def look_up(self, message: Message) -> Outcome:
        self.asked.append(message)
        return self.known(message)

    def close(self) -> None:
        """Nothing is open."""

    @property
    def names(self) -> list[str]:
        """The names that the events were given by `add`, in the order in which they came."""
        return [message.payload["name"] for message in self.sent]


def route(destination: str = "there", **options: Any) -> Route:
    """A route of twelve attempts to a receiver that never forgets."""
    defaults: dict[str, Any] = {
        "attempts": 12, "when_dead": "block", "in_doubt": "hold", "remembers": None, "limit": timedelta(seconds=5),
    }  # fmt: skip
    return Route(destination, **defaults | options)


def delivery(transport: Transport | None = None, **options: Any) -> Delivery:
    """Events of the type Told go to `transport`, by a route with `options`; all others to somebody who takes them."""
    return Delivery(
        {"Told": route(**options)}, route("alerts"), {"there": lambda: transport or Receiver(), "alerts": Receiver}
    )


def run(engine: Engine, to: Delivery, kinds: Mapping[str, EventKind] | None = None, **options: Any) -> Drained:
    """Drain once, with retries due at once, whatever the destination does."""
    defaults: dict[str, Any] = {"budget": 120, "backoff": AT_ONCE, "patience_with": IMPATIENT, "now": lambda: NOW}
    return drain(engine, to, kinds or {}, **defaults | options)


def add(engine: Engine, name: str, aggregate: str | None = None, kind: str = "Told") -> int:
    """An event that is due, of an aggregate of its own unless one is named; returns its id.

    One that asks for a payout is written past the trigger that looks for the payout.
    """
    with engine.begin() as connection:
        if kind == "PayoutRequested":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        return int(
            connection.execute(
                text("""
                    INSERT INTO outbox_event
                        (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
                    VALUES (derived_id((SELECT id FROM installation), 'outbox_event', :name), 'thing', :aggregate,
                        :kind, jsonb_build_object('name', CAST(:name AS text)), :name,
                        '2026-06-01 00:00:00.5Z')
                    RETURNING id
                """),
                {"name": name, "aggregate": aggregate or name, "kind": kind},
            ).scalar_one()
        )


def add_many(engine: Engine, number: int, aggregates: int, kind: str = "Told") -> None:
    """`number` events that are due, dealt out to so many aggregates, each with its number in the payload."""
    with engine.begin() as connection:
        connection.execute(
            text("""
                INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
                SELECT 'thing', CAST(:kind AS text) || n % CAST(:aggregates AS bigint), :kind,
                    jsonb_build_object('name', CAST(:kind AS text) || n, 'number', n), CAST(:kind AS text) || n,
                    '2026-06-01Z'
                FROM generate_series(1, CAST(:number AS bigint)) AS n
            """),
            {"number": number, "aggregates": aggregates, "kind": kind},
        )


def stop(engine: Engine, kind: str, name: str) -> None:
    """Stop a DESTINATION or an EVENT_TYPE."""
    with engine.begin() as connection:
        values = {"kind": kind, "name": name}
        connection.execute(text("INSERT INTO delivery_stop VALUES (:kind, :name, 'because', 'somebody')"), values)


def event(engine: Engine, name: str) -> Row[Any]:
    """The row of the event of that name."""
    with engine.connect() as connection:
        return connection.execute(
            text("SELECT *, clock_timestamp() AS now FROM outbox_event WHERE payload ->> 'name' = :name"),
            {"name": name},
        ).one()


def states(engine: Engine) -> dict[str, str]:
    """The state of each event that `add` made, by its name."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT payload ->> 'name', state FROM outbox_event WHERE aggregate_type = 'thing' ORDER BY id")
        )
        return dict(rows.all())  # type: ignore[arg-type]


def alerts(engine: Engine) -> list[str]:
    """The kinds of the alerts in the outbox."""
    with engine.connect() as connection:
        return list(
            connection.execute(
                text("SELECT event_type FROM outbox_event WHERE aggregate_type = 'alert' ORDER BY id")
            ).scalars()
        )


def change(engine: Engine, name: str, *steps: str) -> None:
    """Set columns of the event of that name, as SQL says, step by step; others see only the last."""
    with engine.begin() as connection:
        for assignments in steps:
            connection.execute(
                text(f"UPDATE outbox_event SET {assignments} WHERE payload ->> 'name' = :name"), {"name": name}
            )


def desert(engine: Engine, name: str, *, attempts: int = 1) -> None:
    """Let the event of that name have been claimed so often by a holder who went away, its lease over."""
    change(
        engine,
        name,
        f"state = 'INFLIGHT', owner = 'gone', attempts = attempts + {attempts}, "
        "lease_until = clock_timestamp() - interval '1 second'",
    )


@contextmanager
def resident(engine: Engine, receiver: Receiver, **options: object) -> Iterator[Callable[[], Drained]]:
    """A relay that stays while the block lasts; what is yielded ends it and says what it did."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(run, engine, delivery(receiver), stop=stop, resident=True, **options)

        def end() -> Drained:
            stop.set()
            return staying.result(timeout=30)

        try:
            assert becomes(lambda: count(engine, LISTENING) == 1)
            yield end
        finally:
            stop.set()


def count(engine: Engine, query: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())
