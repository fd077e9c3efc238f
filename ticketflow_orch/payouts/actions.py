"""What people decide about payouts: hold and release, settle what is in doubt, return what came back, pause it.

The relay locks an event first and its payout second; whoever decides about one payout does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, Row

from ticketflow_orch import clock
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.backing import PARKED
from ticketflow_orch.payouts.references import tell_shared
from ticketflow_orch.payouts.request import EVENT_TYPE, EVENTS, NOBODY_IS_PARKED_MEANWHILE, mark_paid
from ticketflow_orch.settlement.anomalies import OPEN, by_the_end_of

STILL_HELD = (
    "Still held by somebody, or with a parked organization, or for anomalies: {:,}; release each by its reference."
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which payouts to decide about at once: those of a month, of a currency in it, or one by its reference."""

    month: Month | None = None
    currency: str | None = None
    reference: str | None = None


def pause(connection: Connection, reason: str, by: str) -> None:
    """Stop sending payouts, whatever is requested meanwhile; what is being sent comes to its end.

    Raises:
        InvalidInput: they are paused already.
    """
    if not connection.exec_driver_sql(_PAUSE, {"name": EVENT_TYPE, "reason": reason, "by": by}).rowcount:
        raise InvalidInput(f"Payouts are paused already, {paused(connection)}; resume them first.")


def paused(connection: Connection) -> str | None:
    """Who paused payouts and why, as part of a sentence; None when they are sent."""
    stop = connection.exec_driver_sql(_STOP, {"name": EVENT_TYPE}).one_or_none()
    return None if stop is None else f"by {stop.stopped_by}: {stop.reason}"


def resume(connection: Connection) -> None:
    """Send payouts again.

    Raises:
        InvalidInput: they are not paused.
    """
    if not connection.exec_driver_sql(_RESUME, {"name": EVENT_TYPE}).rowcount:
        raise InvalidInput("Payouts are not paused; there is nothing to resume.")


def hold(connection: Connection, reference: str, reason: str, by: str) -> None:
    """Keep a requested payout from being sent until it is released.

    Raises:
        InvalidInput: there is no such payout, or it may be on its way already.
    """
    found = _locked(connection, reference)
    if (found.state, found.event_state) != ("REQUESTED", "PENDING") or found.first_attempt_at is not None:
        tried = f" and was tried at {found.first_attempt_at:%Y-%m-%d %H:%M} UTC" if found.first_attempt_at else ""
        raise InvalidInput(
            f"Payout {reference} is {found.state}{tried}; only one that is REQUESTED and was never tried can be held."
        )
    connection.exec_driver_sql(_MOVE_EVENT, {"id": found.event_id, "state": "HELD"})
    _move(connection, found, "HELD", by, reason=reason)


def release(
    engine: Engine,
    selection: Selection,
    by: str,
    chunk_size: int = 5000,
    *,
    anomalies: bool = False,
) -> int:
    """Send the held payouts that `selection` names; returns how many.

    Of a month only those that nobody but the review holds: what a person holds, or an organization that is parked, is
    released by its reference; what is held for anomalies too, unless `anomalies` says that all of them were looked at.
    The anomalies that a payout was held for are accepted with it.

    Raises:
        InvalidInput: it names none that is held, or none but such.
    """
    released = 0
    months: set[Month] = set()
    parameters = _selected(selection) | {"by": by, "size": chunk_size, "anomalies": anomalies}
    while True:
        with transaction(engine) as connection:
            connection.exec_driver_sql(NOBODY_IS_PARKED_MEANWHILE)
            chunk = connection.exec_driver_sql(_RELEASE, parameters).all()
            references = [row.public_id for row in chunk]
            connection.exec_driver_sql(_WAKE_EVENTS, {"references": references})
            connection.exec_driver_sql(_ACCEPT, {"references": references, "by": by})
        released += len(chunk)
        months |= {Month.of_day(row.month) for row in chunk}
        if not chunk:
            break
    if not released:
        with engine.connect() as connection:
            kept = held(connection, selection)
        if kept:
            raise InvalidInput(f"No payout {_named(selection)} is held for review. {STILL_HELD.format(kept)}")
        raise InvalidInput(f"No payout {_named(selection)} is held; `ticketflow payouts list --state held` shows them.")
    for month in sorted(months):
        with transaction(engine) as connection:
            mark_paid(connection, month)
    return released


def hold_parked(connection: Connection, organization: int) -> tuple[int, tuple[str, ...]]:
    """Hold what is requested for the organization with this id, which is parked in this transaction.

    Returns how many payouts are held now, and the references of those that were sent, or may have been, and have no
    answer: nothing takes them back. What a relay has in its hands and does not send after all is held by it.
    """
    values = {"organization_id": organization}
    connection.exec_driver_sql(_LOCK_EVENTS_OF_PARKED, values)
    # With fresh eyes: what became of an event while its lock was waited for is seen.
    count = connection.exec_driver_sql(_HOLD_PARKED, values).scalar_one()
    return int(count), tuple(connection.exec_driver_sql(_ON_THEIR_WAY, values).scalars())


def release_parked(connection: Connection, organization: int) -> dict[str, Month]:
    """Send what only the parking of the organization held, under its own events; what else holds it goes on.

    Returns the references of what is sent, with their months, which `mark_paid` is for when this is committed.
    """
    rows = connection.exec_driver_sql(_RELEASE_PARKED, {"organization_id": organization}).all()
    released = {str(row.public_id): Month.of_day(row.month) for row in rows if row.state == "REQUESTED"}
    connection.exec_driver_sql(_WAKE_EVENTS, {"references": list(released)})
    return released


def held(connection: Connection, selection: Selection) -> int:
    """How many of the payouts that `selection` names are held, by whomever."""
    return int(connection.exec_driver_sql(_HELD, _selected(selection)).scalar_one())


def ask_again(engine: Engine, selection: Selection, by: str, *, looked_up: bool, chunk_size: int = 5000) -> int:
    """Ask the provider again for payouts in doubt, under the same keys and with fresh attempts; returns how many.

    `looked_up`: their route asks the provider for our reference before it sends anything that is in doubt, so the doubt
    stays with the event. Without that it is `by` whose word counts: the provider has not paid them.

    Raises:
        InvalidInput: none of them can be asked for again.
    """
    asked = 0
    parameters = _selected(selection) | {"by": by, "size": chunk_size, "looked_up": looked_up}
    while True:
        with transaction(engine) as connection:
            chunk = connection.exec_driver_sql(_ASK_AGAIN, parameters).rowcount
        asked += chunk
        if not chunk:
            break
    if not asked:
        raise InvalidInput(
            f"No payout {_named(selection)} can be asked for again: that is for payouts in doubt of which the provider "
            "never said that it has them; settle the others as confirmed or rejected."
        )
    return asked


def confirm(connection: Connection, reference: str, by: str, provider_ref: str | None = None) -> None:
    """Say that a payout was paid: one in doubt, or one handed over to something that gives no answers.

    One that is confirmed already takes another reference of the provider's, where it shares the one it has.

    Raises:
        InvalidInput: there is no such payout, or it does not wait for anybody's word.
    """
    found = _locked(connection, reference)
    if found.state == "CONFIRMED" and found.shares and provider_ref:
        connection.exec_driver_sql(_REFER, {"id": found.id, "by": by, "provider_ref": provider_ref})
    elif _waits(found):
        _move_event(connection, found, "DELIVERED")
        _move(connection, found, "CONFIRMED", by, provider_ref=provider_ref)
    else:
        raise _nothing_to_settle(found)
    tell_shared(connection, [provider_ref or found.provider_ref], clock.now())


def reject(connection: Connection, reference: str, reason: str, by: str) -> None:
    """Say that a payout was not paid and never will be: its money returns to the organization's balance.

    For one in doubt, one handed over to something that gives no answers, and one that is held: that is not sent then.

    Raises:
        InvalidInput: there is no such payout, or it does not wait for anybody's word.
    """
    found = _locked(connection, reference)
    unsent = found.state == "HELD" and found.event_state in {"HELD", None}
    if not (_waits(found) or unsent):
        raise _nothing_to_settle(found)
    _move_event(connection, found, "SUPPRESSED")
    _move(connection, found, "REJECTED", by, reason=reason)
    mark_paid(connection, Month.of_day(found.month))


def return_payout(connection: Connection, reference: str, reason: str, by: str) -> None:
    """Say that a confirmed payout came back: its money returns with the first month that is not closed.

    Raises:
        InvalidInput: there is no such payout, or it is not CONFIRMED.
    """
    found = _locked(connection, reference)
    if found.state != "CONFIRMED":
        raise InvalidInput(f"Payout {reference} is {found.state}; only a confirmed one can come back.")
    _move(connection, found, "RETURNED", by, reason=reason)


def _locked(connection: Connection, reference: str) -> Row[Any]:
    values = {"reference": reference_of(reference)}
    connection.exec_driver_sql(_LOCK_EVENT, values)
    found = connection.exec_driver_sql(_LOCK, values).one_or_none()
    if found is None:
        raise InvalidInput(f"There is no payout {reference}; `ticketflow payouts list` shows their references.")
    return found


def reference_of(text_: str) -> UUID:
    """A payout's reference, as the provider has it.

    Raises:
        InvalidInput: it is no UUID.
    """
    try:
        return UUID(text_)
    except ValueError:
        raise InvalidInput(
            f"{text_!r} is no reference of a payout; give the UUID that `ticketflow payouts list` shows."
        ) from None


def _move(
    connection: Connection,
    found: Row[Any],
    state: str,
    by: str,
    *,
    reason: str | None = None,
    provider_ref: str | None = None,
) -> None:
    connection.exec_driver_sql(
        _MOVE, {"id": found.id, "state": state, "by": by, "reason": reason, "provider_ref": provider_ref}
    )


def _move_event(connection: Connection, found: Row[Any], state: str) -> None:
    # What is decided may never be sent any more, so its event comes to an end too, if it has not yet.
    if found.event_state in {"IN_DOUBT", "DEAD", "HELD"}:
        connection.exec_driver_sql(_MOVE_EVENT, {"id": found.event_id, "state": state})


def _waits(found: Row[Any]) -> bool:
    """Whether nothing but a person will tell what became of a payout, whose event may be gone by now.

    While its event is on its way there may still be an answer, and what a person said could not be taken back.
    """
    if found.event_state in {"PENDING", "INFLIGHT"}:
        return False
    over = found.event_state in {"DELIVERED", "SUPPRESSED", None}
    return found.state == "IN_DOUBT" or (found.state == "REQUESTED" and over)


def _nothing_to_settle(found: Row[Any]) -> InvalidInput:
    way = ", and is still on its way" if found.event_state in {"PENDING", "INFLIGHT"} else ""
    return InvalidInput(
        f"Payout {found.public_id} is {found.state}{way}; `ticketflow payouts list --state in_doubt` shows what waits."
    )


def _selected(selection: Selection) -> dict[str, object]:
    return {
        "month": selection.month and selection.month.first_day,
        "currency": selection.currency,
        "reference": selection.reference and reference_of(selection.reference),
    }


def _named(selection: Selection) -> str:
    if selection.reference:
        return selection.reference
    return f"of {selection.month}" + (f" in {selection.currency}" if selection.currency else "")


_PAUSE = """
    INSERT INTO delivery_stop (kind, name, reason, stopped_by) VALUES ('EVENT_TYPE', %(name)s, %(reason)s, %(by)s)
    ON CONFLICT DO NOTHING
"""

_STOP = "SELECT reason, stopped_by FROM delivery_stop WHERE kind = 'EVENT_TYPE' AND name = %(name)s"

_RESUME = "DELETE FROM delivery_stop WHERE kind = 'EVENT_TYPE' AND name = %(name)s"

_EVENT_OF = "dedupe_key = 'PayoutRequested:' || %(reference)s::text"

_LOCK_EVENT = sql(__file__, "lock_event", event_of=_EVENT_OF)

_LOCK = sql(__file__, "lock", event_of=_EVENT_OF)

_MOVE = """
    UPDATE payout SET state = %(state)s::text, decided_by = %(by)s,
        reason = coalesce(%(reason)s::text, reason),
        provider_ref = coalesce(%(provider_ref)s::text, provider_ref),
        answered_at = CASE WHEN %(state)s::text IN ('CONFIRMED', 'REJECTED') THEN clock_timestamp()
            ELSE answered_at END
    WHERE id = %(id)s
"""

_REFER = """
    UPDATE payout SET provider_ref = %(provider_ref)s::text, decided_by = %(by)s WHERE id = %(id)s
"""

_MOVE_EVENT = """
    UPDATE outbox_event SET state = %(state)s::text, available_at = NULL,
        ended_at = CASE WHEN %(state)s::text IN ('DELIVERED', 'SUPPRESSED') THEN clock_timestamp() END
    WHERE id = %(id)s
"""

_CHOSEN = """
    (%(reference)s::uuid IS NULL OR public_id = %(reference)s::uuid)
    AND (%(month)s::date IS NULL OR month = %(month)s::date)
    AND (%(currency)s::char(3) IS NULL OR currency = %(currency)s::char(3))
"""

_ASK_AGAIN = sql(__file__, "ask_again", event_type=EVENT_TYPE, chosen=_CHOSEN)

_HELD = sql(__file__, "held", chosen=_CHOSEN)

_RELEASE = sql(__file__, "release", chosen=_CHOSEN)

_WAKE_EVENTS = sql(__file__, "wake_events", event_type=EVENT_TYPE, events=EVENTS)

_ACCEPT = sql(__file__, "accept", open=OPEN, by_the_end_of_payout_month=by_the_end_of("payout.month"))

_EVENT_OF_PAYOUT = f"dedupe_key = '{EVENT_TYPE}:' || public_id"

_LOCK_EVENTS_OF_PARKED = sql(__file__, "lock_events_of_parked", event_of_payout=_EVENT_OF_PAYOUT)

_HOLD_PARKED = sql(__file__, "hold_parked", event_of_payout=_EVENT_OF_PAYOUT, parked=PARKED)

_ON_THEIR_WAY = """
    SELECT public_id::text FROM payout
    WHERE organization_id = %(organization_id)s::bigint AND state IN ('REQUESTED', 'IN_DOUBT')
    ORDER BY id
"""

_RELEASE_PARKED = sql(__file__, "release_parked", parked=PARKED)
