"""Parking by hand: an organization whose balances and payouts stop until somebody says so. Its ledger goes on.

What is requested and not sent yet is held with it, in the same transaction, and goes on when the parking ends. What a
settlement or a closing parks, because of its data, is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed, UnknownOrganization
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.decisions import holding
from ticketflow_orch.payouts.backing import PARKED, is_parked
from ticketflow_orch.payouts.events import EVENT_KEY, let_go
from ticketflow_orch.payouts.model import PayoutState
from ticketflow_orch.payouts.request import mark_paid
from ticketflow_orch.periods.state import PERIODS


@dataclass(frozen=True, slots=True)
class Parking:
    """An organization parked by a person from `month` on; `parked_by` is who, as declared and by database role.

    `held`: how many payouts its beginning held. `on_their_way`: the references of those that it came too late for.
    `released`: how many payouts its end lets go.
    """

    external_ref: str
    month: Month
    reason: str
    parked_by: str
    since: datetime
    held: int = 0
    on_their_way: tuple[str, ...] = ()
    released: int = 0


def park(engine: Engine, external_ref: str, reason: str, by: str, first_month: Month) -> Parking:
    """Park the organization from the first month that is not closed on: it gets no balance and no payout.

    A month that is being closed counts as closed. `by` is who decided it. What is requested and cannot have arrived is
    held; what may have is named, and goes on.

    Raises:
        InvalidInput: there is no such organization, or no reason is given.
        PreconditionFailed: it is parked by hand already.
    """
    if not reason.strip():
        raise InvalidInput(f"Say why {external_ref!r} is parked: --reason TEXT.")
    with transaction(engine) as connection:
        organization = _organization(connection, external_ref)
        row = connection.exec_driver_sql(
            _PARK,
            {"organization_id": organization, "first": first_month.first_day, "reason": reason.strip(), "by": by},
        ).one_or_none()
        if row is None:
            raise PreconditionFailed(
                f"Organization {external_ref!r} is parked by hand already; `ticketflow unpark` ends that."
            )
        held, on_their_way = _hold(connection, organization)
    return replace(_parking(external_ref, row), held=held, on_their_way=on_their_way)


def unpark(engine: Engine, external_ref: str, by: str) -> Parking:
    """End the parking by hand; the next month that is closed balances all that was posted meanwhile.

    What only the parking held is sent.

    Raises:
        InvalidInput: there is no such organization.
        PreconditionFailed: nobody has parked it by hand.
    """
    with transaction(engine) as connection:
        organization = _organization(connection, external_ref)
        row = connection.exec_driver_sql(_UNPARK, {"organization_id": organization, "by": by}).one_or_none()
        if row is None:
            raise PreconditionFailed(
                f"Organization {external_ref!r} is not parked by hand; what a settlement or a closing failed on is "
                "resolved by the next settlement once its data are corrected."
            )
        released = _release(connection, organization)
    _mark_paid(engine, released)
    return replace(_parking(external_ref, row), released=len(released))


def parked_by_hand(connection: Connection) -> tuple[Parking, ...]:
    """Everybody who is parked by hand, the longest first."""
    rows = connection.exec_driver_sql(_LIST)
    return tuple(_parking(row.external_ref, row) for row in rows)


def _hold(connection: Connection, organization: int) -> tuple[int, tuple[str, ...]]:
    """Hold what is requested for the organization with this id, which is parked in this transaction.

    Returns how many payouts are held now, and the references of those that were sent, or may have been, and have no
    answer: nothing takes them back. What a relay has claimed and does not send after all is held by the relay.
    """
    values = {"organization_id": organization}
    connection.exec_driver_sql(_LOCK_EVENTS, values)
    # With fresh eyes: what became of an event while its lock was waited for is seen.
    count = connection.exec_driver_sql(_HOLD, values).scalar_one()
    return int(count), tuple(connection.exec_driver_sql(_ON_THEIR_WAY, values).scalars())


def _release(connection: Connection, organization: int) -> dict[str, Month]:
    """Send what only the parking of the organization held, under its own events; what else holds it goes on.

    Returns the references of what is sent, with their months, which `mark_paid` is for when this is committed.
    """
    rows = connection.exec_driver_sql(_RELEASE, {"organization_id": organization}).all()
    released = {str(row.public_id): Month.of_day(row.month) for row in rows if row.state == PayoutState.REQUESTED}
    let_go(connection, list(released))
    return released


def _mark_paid(engine: Engine, released: Mapping[str, Month]) -> None:
    for month in sorted(set(released.values())):
        with transaction(engine) as connection:
            mark_paid(connection, month)


def _parking(external_ref: str, row: Row[Any]) -> Parking:
    return Parking(external_ref, Month.of_day(row.month), row.reason, row.parked_by, row.since)


def _organization(connection: Connection, external_ref: str) -> int:
    found = connection.exec_driver_sql(
        "SELECT id FROM organization WHERE external_ref = %(ref)s", {"ref": external_ref}
    ).scalar_one_or_none()
    if found is None:
        raise UnknownOrganization(external_ref)
    return int(found)


_PARK = sql(__file__, "park", periods=PERIODS)

_UNPARK = """
    UPDATE parked_organization
    SET resolved_at = clock_timestamp(), resolved_by = %(by)s::text || ' (role ' || session_user || ')'
    WHERE organization_id = %(organization_id)s AND resolved_at IS NULL AND reason IS NOT NULL
    RETURNING month, reason, coalesce(parked_by, 'unknown') AS parked_by, since
"""

_LIST = """
    SELECT external_ref, month, reason, coalesce(parked_by, 'unknown') AS parked_by, since
    FROM parked_organization JOIN organization ON organization.id = organization_id
    WHERE resolved_at IS NULL AND reason IS NOT NULL
    ORDER BY since, external_ref
"""

_LOCK_EVENTS = sql(__file__, "lock_events", event_key=EVENT_KEY)

_HOLD = sql(__file__, "hold", event_key=EVENT_KEY, parked=PARKED, holding=holding("waiting"))

_ON_THEIR_WAY = """
    SELECT public_id::text FROM payout
    WHERE organization_id = %(organization_id)s::bigint AND state IN ('REQUESTED', 'IN_DOUBT')
    ORDER BY id
"""

_RELEASE = sql(__file__, "release", parked=PARKED, is_parked=is_parked("payout.organization_id"))
