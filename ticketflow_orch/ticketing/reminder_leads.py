"""How long before the start each kind of reminder is due, and what a change of that does: nobody falls between leads.

A new lead holds for whatever comes due under it from then on. What would have come due before it held, had it been
there, was not due by the lead that was: it keeps that one. So a lead that somebody mistypes for a quarter of an hour
reminds nobody early and skips nobody, and one that is made longer for good skips nobody either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

# Later than any start; Python's infinity.
_FOR_EVER = datetime(9999, 1, 1, tzinfo=UTC)
# Leads that ended so long ago, besides the longest of them, are of no concern to an event that is still to come.
_REMEMBERED = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Held:
    """A lead and when it held: from `since` until before `until`."""

    lead: timedelta
    since: datetime
    until: datetime = _FOR_EVER


@dataclass(frozen=True, slots=True)
class Leads:
    """The leads of a kind, in the order in which they held; the last one does."""

    kind: str
    held: Sequence[Held]

    @property
    def lead(self) -> timedelta:
        """The one that holds."""
        return self.held[-1].lead

    @property
    def due_at(self) -> str:
        """The SQL of when the kind is due for an event that starts at `starts_at`; NULL: before there was the kind."""
        return _DUE_AT if len(self.held) == 1 else _DUE_AT_BY_SEVERAL

    def parameters(self, nothing_before: datetime | None) -> dict[str, object]:
        """What `due_at` binds. `nothing_before`: what was due before is loaded history."""
        earliest = [one.since if nothing_before is None else max(one.since, nothing_before) for one in self.held]
        return {
            "lead": self.lead,
            "nothing_before": earliest[-1],
            "leads": [one.lead for one in self.held],
            "sinces": earliest,
            "untils": [one.until for one in self.held],
        }


def read_leads(connection: Connection, kind: str, now: datetime) -> Leads | None:
    """The leads that `kind` had, as far as they concern events that are still to come; None: it is not known yet."""
    begun = [(row.lead, row.since) for row in connection.exec_driver_sql(_KNOWN, {"kind": kind})]
    if not begun:
        return None
    ends = [since for _, since in begun[1:]] + [_FOR_EVER]
    oldest = now - max(lead for lead, _ in begun) - _REMEMBERED
    held = [Held(lead, since, until) for (lead, since), until in zip(begun, ends, strict=True)]
    return Leads(kind, [one for one in held if one.until > oldest])


def agree_on(connection: Connection, kind: str, lead: timedelta, now: datetime) -> Leads:
    """The leads of `kind`, from `now` on with `lead`, in the caller's transaction; a new kind begins now."""
    leads = read_leads(connection, kind, now)
    if leads is not None and leads.lead == lead:
        return leads
    connection.exec_driver_sql(_ENABLE, {"kind": kind, "lead": lead, "now": now})
    leads = read_leads(connection, kind, now)
    if leads is None:
        raise LookupError(f"kind {kind} is not there right after it was written")
    if leads.lead == lead:
        return leads
    # A clock that stands still, or runs back, must not end a lead before it began.
    since = max(now, leads.held[-1].since + timedelta(microseconds=1))
    first = leads.held[0]
    values = {"kind": kind, "lead": lead, "since": since, "first": first.lead, "first_since": first.since}
    connection.exec_driver_sql(_CHANGE, values)
    longest = max(one.lead for one in (*leads.held, Held(lead, since)))
    connection.exec_driver_sql(_FORGET, {"kind": kind, "before": since - longest - _REMEMBERED})
    changed = read_leads(connection, kind, now)
    return leads if changed is None else changed


# Waits for a session that changes the kind at this moment.
_ENABLE = """
    INSERT INTO reminder_kind AS known (kind, lead, enabled_at) VALUES (%(kind)s, %(lead)s, %(now)s::timestamptz)
    ON CONFLICT (kind) DO UPDATE SET enabled_at = known.enabled_at
"""

# Where there never was another, only the kind itself says which it is.
_KNOWN = """
    SELECT coalesce(held.lead, known.lead) AS lead, coalesce(since, enabled_at) AS since
    FROM reminder_kind AS known LEFT JOIN reminder_lead AS held USING (kind)
    WHERE kind = %(kind)s ORDER BY since
"""

_CHANGE = """
    WITH changed AS (
        UPDATE reminder_kind SET lead = %(lead)s WHERE kind = %(kind)s RETURNING kind
    )
    INSERT INTO reminder_lead (kind, lead, since)
    SELECT kind, begun.lead, begun.since
    FROM changed CROSS JOIN (VALUES
        (%(first)s::interval, %(first_since)s::timestamptz),
        (%(lead)s::interval, %(since)s::timestamptz)
    ) AS begun (lead, since)
    ON CONFLICT DO NOTHING
"""

# Whatever ended before: no event that is still to come can have come due while it held.
_FORGET = """
    DELETE FROM reminder_lead AS old
    WHERE kind = %(kind)s AND EXISTS (
        SELECT FROM reminder_lead AS next
        WHERE next.kind = old.kind AND next.since > old.since AND next.since < %(before)s::timestamptz)
"""

_DUE_AT = """
    CASE WHEN starts_at - %(lead)s::interval >= %(nothing_before)s::timestamptz
        THEN starts_at - %(lead)s::interval END
"""

# First what came due while its lead held. What no lead was in time for keeps the one by which it is due first, of those
# that were there before it was.
_DUE_AT_BY_SEVERAL = """
    coalesce(
        (SELECT min(starts_at - held.lead)
        FROM unnest(%(leads)s::interval[], %(sinces)s::timestamptz[], %(untils)s::timestamptz[])
            AS held (lead, since, until)
        WHERE starts_at - held.lead >= since AND starts_at - held.lead < until),
        (SELECT min(starts_at - held.lead)
        FROM unnest(%(leads)s::interval[], %(sinces)s::timestamptz[]) AS held (lead, since)
        WHERE starts_at - held.lead >= since))
"""
