"""Which months are due to be settled: over everywhere, not before the first movement, and not settled yet."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from ticketflow_orch.months import Month, months_between
from ticketflow_orch.settlement.closed_months import takes_postings
from ticketflow_orch.settlement.passes import zones_in_use


def due_months(connection: Connection, now: datetime, first_month: Month) -> tuple[Month, ...]:
    """The months that a settlement at `now` (aware) should take on, in order; none before `first_month`."""
    settled = _settled(connection)
    return tuple(
        month
        for month in months_over(connection, now, first_month)
        if month not in settled and takes_postings(connection, month)
    )


def months_due_at(connection: Connection, tick: datetime, first_month: Month) -> tuple[Month, ...]:
    """The months that were due at `tick` (aware), an instant of the past: over by then, settled later or not yet.

    None that was never settled and lies before a closed one: nothing may be posted there, so nobody was to settle it.
    """
    before = connection.execute(text("SELECT month FROM settlement_period WHERE settled_at < :tick"), {"tick": tick})
    earlier = {Month.of_day(day) for day in before.scalars()}
    settled = _settled(connection)
    return tuple(
        month
        for month in months_over(connection, tick, first_month)
        if month not in earlier and (month in settled or takes_postings(connection, month))
    )


def months_over(connection: Connection, now: datetime, first_month: Month) -> tuple[Month, ...]:
    """From the month of the first movement, all months that are over at `now` in every zone in use."""
    zones = zones_in_use(connection)
    if not zones:
        return ()
    last = min(Month.of_instant(now, timezone) for timezone in zones).previous()
    for month in months_between(first_month, last):
        if _has_movements(connection, month, zones):
            return tuple(months_between(month, last))
    return ()


def _settled(connection: Connection) -> set[Month]:
    days = connection.execute(text("SELECT month FROM settlement_period WHERE state <> 'OPEN'")).scalars()
    return {Month.of_day(day) for day in days}


def _has_movements(connection: Connection, month: Month, zones: list[str]) -> bool:
    windows = [month.window(timezone) for timezone in zones]
    return bool(
        connection.execute(
            text("""
                SELECT EXISTS (
                    SELECT FROM money_movement
                    JOIN organization ON organization.id = organization_id
                    JOIN unnest(
                        CAST(:timezones AS text[]), CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
                    ) AS time_window (timezone, starts_at, ends_at) USING (timezone)
                    WHERE occurred_at >= CAST(:earliest AS timestamptz) AND occurred_at < CAST(:latest AS timestamptz)
                        AND occurred_at >= starts_at AND occurred_at < ends_at
                )
            """),
            {
                "timezones": zones,
                "starts": [window.starts_at for window in windows],
                "ends": [window.ends_at for window in windows],
                "earliest": min(window.starts_at for window in windows),
                "latest": max(window.ends_at for window in windows),
            },
        ).scalar_one()
    )
