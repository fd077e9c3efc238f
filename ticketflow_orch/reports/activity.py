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
    found = _id(connection, "reservation", "public_ref", reference)
    return _effects(connection, _ON_RESERVATION, id=found)


def effects_on_event(connection: Connection, reference: str, limit: int = 1000) -> tuple[Effect, ...]:
    """The effects on the event `reference` and on its reservations: the last `limit`, the oldest of them first.

    Raises:
        InvalidInput: there is no such event.
    """
    found = _id(connection, "event", "external_ref", reference)
    return _effects(connection, _ON_EVENT, id=found, limit=limit)


def effects_on_organization(connection: Connection, reference: str, limit: int = 1000) -> tuple[Effect, ...]:
    """The organization's ledger entries and the effects on its events: the last `limit`, the oldest of them first.

    Those on the reservations of its events are found by event.

    Raises:
        InvalidInput: there is no such organization.
    """
    found = _id(connection, "organization", "external_ref", reference)
    told = _effects(connection, _ON_ORGANIZATION, id=found, limit=limit)
    posted = _posted(connection, found, reference, limit)
    return tuple(sorted((*told, *posted), key=lambda effect: effect.at)[-limit:])


def _id(connection: Connection, table: str, column: str, reference: str) -> int:
    found = connection.exec_driver_sql(
        f"SELECT id FROM {table} WHERE {column} = %(reference)s", {"reference": reference}
    )
    one = found.scalar_one_or_none()
    if one is None:
        raise InvalidInput(f"There is no {table} {reference!r}; give its {column} as TicketFlow writes it.")
    return int(one)


def _effects(connection: Connection, query: str, **parameters: object) -> tuple[Effect, ...]:
    return tuple(Effect(*row) for row in connection.exec_driver_sql(query, parameters).all()[::-1])


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


def _told(aggregate_type: str, source: str, aggregate_id: str, who: str) -> str:
    """The outbox events of the aggregates in `source`, through the index of those under way and of those done with."""
    return " UNION ALL ".join(
        f"""
        SELECT occurred_at, {who}, event_type, outbox_event.state, dedupe_key,
            CASE outbox_event.state WHEN 'DELIVERED' THEN ended_at END,
            CAST(outbox_event.event_id AS text), NULL
        FROM {source} JOIN outbox_event ON aggregate_type = '{aggregate_type}' AND aggregate_id = {aggregate_id}
        WHERE ended_at IS {done}
        """
        for done in ("NOT NULL", "NULL")
    )


_CAPTURES = """
    (SELECT public_ref, external_ref FROM held JOIN money_movement AS movement
        ON movement.reservation_id = held.id AND kind = 'CAPTURE') AS capture
"""

_TO_RESERVATIONS = f"""
    SELECT expired_at, public_ref, 'expired', status, public_ref, CAST(NULL AS timestamptz), CAST(NULL AS text),
        expired_by
    FROM held WHERE status = 'EXPIRED'
    UNION ALL
    SELECT reminder.created_at, public_ref, 'reminder', state, public_ref || '/' || kind || '/' || event_date,
        NULL, CAST(outbox_event_id AS text), NULL
    FROM held JOIN reminder ON reservation_id = held.id
    UNION ALL
    {_told("reservation", "held", "public_ref", "public_ref")}
    UNION ALL
    {_told("cancellation", "held", "public_ref", "public_ref")}
    UNION ALL
    SELECT occurred_at, public_ref, event_type, outbox_event.state, dedupe_key,
        CASE outbox_event.state WHEN 'DELIVERED' THEN ended_at END, CAST(outbox_event.event_id AS text), NULL
    FROM held JOIN reminder ON reservation_id = held.id
    CROSS JOIN LATERAL (
        SELECT outbox_event_id AS mail_id
        UNION ALL
        SELECT {derived_event_id(CHANGE_KEY)} FROM generate_series(1, changes_told) AS number
    ) AS mail
    CROSS JOIN LATERAL (
        SELECT * FROM outbox_event WHERE event_id = mail_id AND aggregate_type = 'reminder' LIMIT 1
    ) AS outbox_event
    UNION ALL
    {_told("capture", _CAPTURES, "external_ref", "public_ref")}
"""

_TO_EVENTS = f"""
    SELECT closed_at, external_ref, 'closed', status, external_ref, CAST(NULL AS timestamptz), CAST(NULL AS text),
        CAST(NULL AS text)
    FROM happening WHERE status = 'CLOSED'
    UNION ALL
    {_told("event", "happening", "CAST(public_id AS text)", "external_ref")}
"""

_ON_RESERVATION = sql(__file__, "on_reservation", to_reservations=_TO_RESERVATIONS)

_ON_EVENT = sql(__file__, "on_event", to_events=_TO_EVENTS, to_reservations=_TO_RESERVATIONS)

_ON_ORGANIZATION = sql(__file__, "on_organization", to_events=_TO_EVENTS)

_POSTED = """
    SELECT entry.*, exponent
    FROM settlement_period AS period
    JOIN ledger_entry AS entry ON entry.month = period.month
    JOIN currency ON code = entry.currency
    WHERE organization_id = %(id)s::bigint
    ORDER BY posted_at DESC LIMIT %(limit)s::bigint
"""
