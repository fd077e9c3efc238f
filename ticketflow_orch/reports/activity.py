"""The effect log: who got what, when and under which key, from the tables that hold the effects themselves.

What retention has deleted from the outbox is not in it any more; what it left is: reminders, ledger entries, and when
and by which run reservations ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.events import derived_event_id
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.ticketing.reminders import CHANGE_KEY


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that happened to `who` (an external reference) at `at`.

    `key` is what makes it happen once. Events of the outbox have the `state` of their delivery, `delivered_at`, and
    `event_id`, under which receivers know them. `run_id` is the Dagster run, or the person, where that is written down.
    """

    at: datetime
    who: str
    what: str
    state: str
    key: str
    delivered_at: datetime | None
    event_id: str | None
    run_id: str | None


def effects_on_reservation(connection: Connection, reference: str) -> tuple[Effect, ...]:
    """All effects on the reservation `reference`, the oldest first.

    Raises:
        InvalidInput: there is no such reservation.
    """
    found = _id(connection, "reservation", reference)
    return _effects(connection, _ON_RESERVATION, id=found)


def effects_on_event(connection: Connection, reference: str, limit: int = 1000) -> tuple[Effect, ...]:
    """The effects on the event `reference` and on its reservations: the last `limit`, the oldest of them first.

    Raises:
        InvalidInput: there is no such event.
    """
    found = _id(connection, "event", reference)
    return _effects(connection, _ON_EVENT, id=found, limit=limit)


def effects_on_organization(connection: Connection, reference: str, limit: int = 1000) -> tuple[Effect, ...]:
    """The organization's ledger entries and the effects on its events: the last `limit`, the oldest of them first.

    Those on the reservations of its events are found by event.

    Raises:
        InvalidInput: there is no such organization.
    """
    found = _id(connection, "organization", reference)
    effects = _effects(connection, _ON_ORGANIZATION, id=found, limit=limit)
    posted = _posted(connection, found, reference, limit)
    return tuple(sorted((*effects, *posted), key=lambda effect: effect.at)[-limit:])


def _id(connection: Connection, table: str, reference: str) -> int:
    column = _REFERENCES[table]
    one = connection.exec_driver_sql(
        sql(__file__, "id_of", table=table, column=column), {"reference": reference}
    ).scalar_one_or_none()
    if one is None:
        raise InvalidInput(f"There is no {table} {reference!r}; give its {column} as TicketFlow writes it.")
    return int(one)


def _effects(connection: Connection, query: str, **parameters: object) -> tuple[Effect, ...]:
    """The effects that `query` finds, which has them in the order of their columns, the latest first."""
    rows = connection.exec_driver_sql(query, parameters).all()
    return tuple(Effect(**row._mapping) for row in reversed(rows))


def _posted(connection: Connection, organization: int, reference: str, limit: int) -> list[Effect]:
    rows = connection.exec_driver_sql(_POSTED, {"id": organization, "limit": limit})
    return [
        Effect(
            at=row.posted_at,
            who=reference,
            what=f"{row.reason or 'settlement'}: net {written_out(row.net, row.exponent)} {row.currency}",
            state="POSTED",
            key=f"{Month.of_day(row.month)}/{row.currency}/{Month.of_day(row.origin_month)}/{row.sequence}",
            delivered_at=None,
            event_id=None,
            run_id=row.run_id,
        )
        for row in rows
    ]


# Under which column of its table people know a thing.
_REFERENCES = {"reservation": "public_ref", "event": "external_ref", "organization": "external_ref"}


def _events_of(aggregate_type: str, source: str, aggregate_id: str, who: str) -> str:
    """SQL: the outbox events of the aggregates in `source`, which is what stands behind FROM.

    `aggregate_id` and `who` (an external reference) are SQL of a row of it.
    """
    return sql(__file__, "events_of", aggregate_type=aggregate_type, source=source, aggregate_id=aggregate_id, who=who)


_ON_RESERVATIONS = sql(
    __file__,
    "on_reservations",
    expiries=_events_of("reservation", "reservation_asked", "public_ref", "public_ref"),
    cancellations=_events_of("cancellation", "reservation_asked", "public_ref", "public_ref"),
    change_of_reminder=derived_event_id(CHANGE_KEY),
    captures=_events_of("capture", sql(__file__, "captures"), "external_ref", "public_ref"),
)

_ON_EVENTS = sql(__file__, "on_events", closings=_events_of("event", "event_asked", "public_id::text", "external_ref"))

_ON_RESERVATION = sql(__file__, "on_reservation", on_reservations=_ON_RESERVATIONS)

_ON_EVENT = sql(__file__, "on_event", on_events=_ON_EVENTS, on_reservations=_ON_RESERVATIONS)

_ON_ORGANIZATION = sql(__file__, "on_organization", on_events=_ON_EVENTS)

_POSTED = sql(__file__, "posted", periods=PERIODS)
