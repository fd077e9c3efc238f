"""What the provider calls our payouts, and where it calls two by one name: one transfer would answer for both.

Code that writes down a reference of the provider alerts about it here. What was alerted stays listed until all but one
of those payouts were returned, or have a reference of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.outbox.alerts import Alert, alert_once

SHARED_ALERT = "PayoutReferenceShared"


@dataclass(frozen=True, slots=True)
class Shared:
    """A reference of the provider under which several payouts are confirmed, and since when that is known."""

    provider_ref: str
    payouts: tuple[str, ...]
    since: datetime


def alert_shared(connection: Connection, provider_refs: Collection[str | None], now: datetime) -> None:
    """Alert, once for each, of those of `provider_refs` that several confirmed payouts have by now.

    To be called after they were written down, in the same transaction. Two that are written down at the same moment are
    found by the audit.
    """
    given = {"provider_refs": sorted({one for one in provider_refs if one})}
    if not given["provider_refs"]:
        return
    for row in connection.exec_driver_sql(_SHARED, given).all():
        payload = {"provider_ref": row.provider_ref, "payouts": row.payouts}
        alert_once(connection, Alert(SHARED_ALERT, row.provider_ref, payload, recurs=True), now)


def shared_references(connection: Connection, limit: int) -> tuple[Shared, ...]:
    """The first `limit` references that were alerted and that several payouts still have."""
    rows = connection.exec_driver_sql(_LISTED, {"kind": SHARED_ALERT, "limit": limit})
    return tuple(Shared(row.provider_ref, tuple(row.payouts), row.since) for row in rows)


def shares(payout: str) -> str:
    """SQL: whether another confirmed payout has the `provider_ref` of the row `payout`, by payout_provider_ref_idx."""
    return f"""EXISTS (
        SELECT FROM payout AS other
        WHERE other.state = 'CONFIRMED' AND other.provider_ref = {payout}.provider_ref AND other.id <> {payout}.id)"""


_SHARED = """
    SELECT provider_ref, array_agg(public_id::text ORDER BY id) AS payouts
    FROM payout WHERE state = 'CONFIRMED' AND provider_ref = ANY (%(provider_refs)s::text[])
    GROUP BY provider_ref HAVING count(*) > 1 ORDER BY provider_ref
"""

_LISTED = """
    SELECT key AS provider_ref, payouts, alerted_at AS since
    FROM alert CROSS JOIN LATERAL (
        SELECT array_agg(public_id::text ORDER BY id) AS payouts, count(*) AS sharing
        FROM payout WHERE state = 'CONFIRMED' AND provider_ref = alert.key
    ) AS confirmed
    WHERE kind = %(kind)s::text AND sharing > 1
    ORDER BY alerted_at, key LIMIT %(limit)s::bigint
"""
