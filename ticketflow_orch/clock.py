"""Business time: what "now" means to rules such as "the month is over". Leases and cutoffs ask the database instead."""

from __future__ import annotations

from datetime import UTC, datetime

from ticketflow_orch.errors import InvalidInput

# Months on either side of an instant must have a name, in any zone.
_YEARS = range(1970, 9999)


def parse_instant(iso: str) -> datetime:
    """An aware UTC instant from ISO 8601 text with an offset.

    Raises:
        InvalidInput: not ISO 8601, or without an offset: whose midnight would it be? Or not `is_in_reach`.
    """
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(
            f"{iso!r} is not an instant; write ISO 8601 with an offset, such as 2026-04-02T05:00:00+02:00."
        )
    if not is_in_reach(moment):
        raise InvalidInput(f"{iso!r} is out of reach; use an instant from {_YEARS[0]} to {_YEARS[-1]}.")
    return moment.astimezone(UTC)


def is_in_reach(moment: datetime) -> bool:
    """Whether everything about `moment` can be computed: it lies in a year from 1970 to 9998."""
    return moment.year in _YEARS


def now(fixed_at: datetime | None = None) -> datetime:
    """The current instant in UTC, or `fixed_at` where the clock stands still."""
    return datetime.now(UTC) if fixed_at is None else fixed_at.astimezone(UTC)
