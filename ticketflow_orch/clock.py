"""Business time: what "now" means to rules such as "the month is over". Leases and cutoffs ask the database instead."""

from __future__ import annotations

from datetime import UTC, datetime

from ticketflow_orch.errors import InputError


def parse_instant(iso: str) -> datetime:
    """An aware UTC instant from ISO 8601 text with an offset.

    Raises:
        InputError: not ISO 8601, or without an offset: whose midnight would it be?
    """
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InputError(
            f"{iso!r} is not an instant; write ISO 8601 with an offset, such as 2026-04-02T05:00:00+02:00."
        )
    return moment.astimezone(UTC)


def now(fixed_at: datetime | None = None) -> datetime:
    """The current instant in UTC, or `fixed_at` where the clock stands still."""
    return datetime.now(UTC) if fixed_at is None else fixed_at.astimezone(UTC)
