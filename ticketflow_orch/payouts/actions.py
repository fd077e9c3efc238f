"""What people decide about payouts: hold and release, settle what is in doubt, return what came back.

The relay locks an event first and its payout second, and so does each decision about one payout. Parking, which is
about an organization, is in `parking`; all payouts stop in `pause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Engine, Row

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.decisions import asking_again, decide
from ticketflow_orch.payouts.backing import is_parked
from ticketflow_orch.payouts.events import EVENT_KEY, EVENT_TYPE, let_go
from ticketflow_orch.payouts.model import PayoutState
from ticketflow_orch.payouts.references import alert_shared, shares
from ticketflow_orch.payouts.request import NOBODY_IS_PARKED_MEANWHILE, mark_paid
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


def hold(connection: Connection, reference: str, reason: str, by: str) -> None:
    """Keep a requested payout from being sent until it is released.

    Raises:
        InvalidInput: there is no such payout.
        PreconditionFailed: it is not REQUESTED, or may be on its way already.
    """
    found = _locked(connection, reference)
    if (found.state, found.event_state) != (PayoutState.REQUESTED, "PENDING") or found.first_attempt_at is not None:
        tried = f" and was tried at {found.first_attempt_at:%Y-%m-%d %H:%M} UTC" if found.first_attempt_at else ""
        raise PreconditionFailed(
            f"Payout {reference} is {found.state}{tried}; only one that is REQUESTED and was never tried can be held."
        )
    decide(connection, found.event_id, "HELD")
    _move(connection, found, PayoutState.HELD, by, reason=reason)


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
        PreconditionFailed: it names none that is held, or none but such.
    """
    released = 0
    months: set[Month] = set()
    parameters = _selected(selection) | {"by": by, "size": chunk_size, "anomalies": anomalies}
    while True:
        with transaction(engine) as connection:
            connection.exec_driver_sql(NOBODY_IS_PARKED_MEANWHILE)
            chunk = connection.exec_driver_sql(_RELEASE, parameters).all()
            references = [row.public_id for row in chunk]
            let_go(connection, references)
            connection.exec_driver_sql(_ACCEPT, {"references": references, "by": by})
        released += len(chunk)
        months |= {Month.of_day(row.month) for row in chunk}
        if not chunk:
            break
    if not released:
        with engine.connect() as connection:
            kept = held(connection, selection)
        if kept:
            raise PreconditionFailed(f"No payout {_named(selection)} is held for review. {STILL_HELD.format(kept)}")
        raise PreconditionFailed(
            f"No payout {_named(selection)} is held; `ticketflow payouts list --state held` shows them."
        )
    for month in sorted(months):
        with transaction(engine) as connection:
            mark_paid(connection, month)
    return released


def held(connection: Connection, selection: Selection) -> int:
    """How many of the payouts that `selection` names are held, for whatever reason."""
    return int(connection.exec_driver_sql(_HELD, _selected(selection)).scalar_one())


def ask_again(engine: Engine, selection: Selection, by: str, *, looked_up: bool, chunk_size: int = 5000) -> int:
    """Ask the provider again for payouts in doubt, under the same keys and with fresh attempts; returns how many.

    `looked_up`: their route asks the provider for our reference before it sends anything that is in doubt, so the doubt
    stays with the event. Without that it is `by` whose word counts: the provider has not paid them.

    Raises:
        PreconditionFailed: none of them can be asked for again.
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
        raise PreconditionFailed(
            f"No payout {_named(selection)} can be asked for again: that is for payouts in doubt of which the provider "
            "never said that it has them; settle the others as confirmed or rejected."
        )
    return asked


def confirm(connection: Connection, reference: str, by: str, provider_ref: str | None = None, *, now: datetime) -> None:
    """Say that a payout was paid: one in doubt, or one handed over to something that gives no answers.

    One that is confirmed already takes another reference of the provider's, where it shares the one it has. `now` is
    the business time (aware) of what is alerted.

    Raises:
        InvalidInput: there is no such payout.
        PreconditionFailed: it does not wait for anybody's word.
    """
    found = _locked(connection, reference)
    if found.state == PayoutState.CONFIRMED and found.shares and provider_ref:
        connection.exec_driver_sql(_REFER, {"id": found.id, "by": by, "provider_ref": provider_ref})
    elif _waits(found):
        _end_event(connection, found, "DELIVERED")
        _move(connection, found, PayoutState.CONFIRMED, by, provider_ref=provider_ref)
    else:
        raise _nothing_to_settle(found)
    alert_shared(connection, [provider_ref or found.provider_ref], now)


def reject(connection: Connection, reference: str, reason: str, by: str) -> None:
    """Say that a payout was not paid and never will be: its money returns to the organization's balance.

    For one in doubt, one handed over to something that gives no answers, and one that is held: that is not sent then.

    Raises:
        InvalidInput: there is no such payout.
        PreconditionFailed: it does not wait for anybody's word.
    """
    found = _locked(connection, reference)
    unsent = found.state == PayoutState.HELD and found.event_state in {"HELD", None}
    if not (_waits(found) or unsent):
        raise _nothing_to_settle(found)
    _end_event(connection, found, "SUPPRESSED")
    _move(connection, found, PayoutState.REJECTED, by, reason=reason)
    mark_paid(connection, Month.of_day(found.month))


def return_payout(connection: Connection, reference: str, reason: str, by: str) -> None:
    """Say that a confirmed payout came back: its money returns with the first month that is not closed.

    Raises:
        InvalidInput: there is no such payout.
        PreconditionFailed: it is not CONFIRMED.
    """
    found = _locked(connection, reference)
    if found.state != PayoutState.CONFIRMED:
        raise PreconditionFailed(f"Payout {reference} is {found.state}; only a confirmed one can come back.")
    _move(connection, found, PayoutState.RETURNED, by, reason=reason)


def _locked(connection: Connection, reference: str) -> Row[Any]:
    values = {"reference": reference_of(reference)}
    connection.exec_driver_sql(_LOCK_EVENT, values)
    found = connection.exec_driver_sql(_LOCK, values).one_or_none()
    if found is None:
        raise InvalidInput(f"There is no payout {reference}; `ticketflow payouts list` shows their references.")
    return found


def reference_of(given: str) -> UUID:
    """A payout's reference, as the provider has it.

    Raises:
        InvalidInput: it is no UUID.
    """
    try:
        return UUID(given)
    except ValueError:
        raise InvalidInput(
            f"{given!r} is no reference of a payout; give the UUID that `ticketflow payouts list` shows."
        ) from None


def _move(
    connection: Connection,
    found: Row[Any],
    state: PayoutState,
    by: str,
    *,
    reason: str | None = None,
    provider_ref: str | None = None,
) -> None:
    connection.exec_driver_sql(
        _MOVE, {"id": found.id, "state": state, "by": by, "reason": reason, "provider_ref": provider_ref}
    )


def _end_event(connection: Connection, found: Row[Any], state: Literal["DELIVERED", "SUPPRESSED"]) -> None:
    # What is decided may never be sent any more, so its event ends too, if it has not yet.
    if found.event_state in {"IN_DOUBT", "DEAD", "HELD"}:
        decide(connection, found.event_id, state)


def _waits(found: Row[Any]) -> bool:
    """Whether nothing but a person can say what became of a payout, whose event may be gone by now.

    While its event is on its way there may still be an answer, and what a person said could not be taken back.
    """
    if found.event_state in {"PENDING", "INFLIGHT"}:
        return False
    over = found.event_state in {"DELIVERED", "SUPPRESSED", None}
    return found.state == PayoutState.IN_DOUBT or (found.state == PayoutState.REQUESTED and over)


def _nothing_to_settle(found: Row[Any]) -> PreconditionFailed:
    way = ", and is still on its way" if found.event_state in {"PENDING", "INFLIGHT"} else ""
    return PreconditionFailed(
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


_LOCK_EVENT = sql(__file__, "lock_event", event_key=f"'{EVENT_TYPE}:' || %(reference)s::text")

_LOCK = sql(__file__, "lock", event_key=EVENT_KEY, shares=shares("payout"))

_MOVE = sql(__file__, "move")

_REFER = "UPDATE payout SET provider_ref = %(provider_ref)s::text, decided_by = %(by)s WHERE id = %(id)s"

_CHOSEN = sql(__file__, "chosen")

_ASK_AGAIN = sql(
    __file__,
    "ask_again",
    event_key=EVENT_KEY,
    chosen=_CHOSEN,
    asking=asking_again("chosen", keep_doubt="%(looked_up)s::boolean"),
)

_HELD = sql(__file__, "held", chosen=_CHOSEN)

_RELEASE = sql(__file__, "release", chosen=_CHOSEN, is_parked=is_parked("payout.organization_id"))

_ACCEPT = sql(__file__, "accept", open=OPEN, by_the_end_of_month=by_the_end_of("payout.month"))
