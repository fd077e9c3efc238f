"""What closing events and expiring reservations share: the rules, which clock judges, and how due rows are taken.

Both are state machines in the database: OPEN → CLOSED and ACTIVE → EXPIRED happen once, with their outbox events in the
same transaction. A second run finds nothing. What each does is in `events` and in `reservations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.batches import Taken, Wanted, as_array
from ticketflow_orch.outbox.events import appending
from ticketflow_orch.periods.two_clocks import judged_at
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.captures import KEPT_CAPTURE

# Before all instants and ids.
_FIRST = ("-infinity", 0)


@dataclass(frozen=True, slots=True)
class LifecycleRules:
    """When things end. Lengths of time; `now` is the business clock (aware)."""

    now: datetime
    run_id: str
    closing_grace: timedelta = timedelta(0)
    expiry_delay: timedelta = timedelta(0)
    payment_grace: timedelta = timedelta(minutes=30)
    chunk_size: int = 10_000

    @classmethod
    def configured(cls, settings: Settings, now: datetime, run_id: str = "") -> LifecycleRules:
        """The rules that `settings` make, at the instant `now`."""
        return cls(
            now=now,
            run_id=run_id,
            closing_grace=settings.closing_grace,
            expiry_delay=settings.expiry_delay,
            payment_grace=settings.payment_grace,
        )


@dataclass(frozen=True, slots=True)
class WouldEnd:
    """What a run would do now, in figures, and the `first` of them by name, those that have waited longest.

    `events` that closing would close; `reservations` that would be expired with them, or by themselves; `stuck`: those
    whose payment would be reported.
    """

    events: int
    reservations: int
    stuck: int
    first: tuple[str, ...]


def judged(engine: Engine, rules: LifecycleRules, undone: str) -> LifecycleRules:
    """The same rules, by the earlier of both clocks: what is closed or expired stays so.

    Raises:
        TicketflowError: as `judged_at` does, whose `undone` it is.
    """
    with engine.connect() as connection:
        return replace(rules, now=judged_at(connection, rules.now, undone))


def take_due(connection: Connection, wanted: Wanted, due: str, instant: str, limits: Mapping[str, datetime]) -> Taken:
    """Of the rows that are `due`, in the order of their `instant`, lock those that are `wanted`.

    `due`: a SELECT of `id` and `at` that ends in an open WHERE and binds `limits`. `instant`: its table and column.
    """
    parts = {"due": due, "instant": instant, "locking": wanted.locking(instant.partition(".")[0])}
    values: dict[str, object] = {"size": wanted.size, **limits}
    if wanted.only is not None:
        statement = sql(__file__, "take_these", **parts)
        values["only"] = as_array(wanted.only)
    else:
        statement = sql(__file__, "take_next", **parts)
        from_at, from_id = wanted.after or _FIRST
        values |= {"left_out": list(wanted.left_out), "from_at": from_at, "from_id": from_id}
    row = connection.exec_driver_sql(statement, values).one()
    return Taken(row.ids, (row.at, row.ids[-1])) if row.ids else Taken((), None)


# The SQL that writes ReservationExpired for each row of `expired`, which has `public_ref`; binds `now`.
announce_expired = partial(
    appending,
    "ReservationExpired",
    "expired",
    aggregate_type="reservation",
    aggregate_id="public_ref",
    payload="jsonb_build_object('ref', public_ref)",
    dedupe_key="'ReservationExpired:' || public_ref",
    occurred_at="%(now)s::timestamptz",
)


# A condition on `reservation`: none of its money is here.
UNPAID = f"NOT EXISTS (SELECT {KEPT_CAPTURE})"
