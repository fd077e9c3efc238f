"""Which months are due to be settled: over everywhere and not settled yet, or not since something came late."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from ticketflow_orch.months import Month, months_between
from ticketflow_orch.settlement.closed_months import came_late, last_closed, months_to_watch, takes_postings
from ticketflow_orch.settlement.passes import period_state, zones_in_use
from ticketflow_orch.settlement.windows import month_windows


def due_months(connection: Connection, now: datetime, first_month: Month) -> tuple[Month, ...]:
    """The months that a settlement at `now` (aware) should take on, in order; none before `first_month`."""
    settled = _settled(connection)
    return tuple(
        month
        for month in months_over(connection, now, first_month)
        if month not in settled and takes_postings(connection, month)
    )


def late_month(connection: Connection) -> Month | None:
    """The month to settle again: the first that is not closed, settled before what came late by now was recorded.

    Late is what it takes in: movements of its own and of all months before it. Without another pass they would wait
    until the month after it is settled, which may have happened too: closed books are then never told of them.
    """
    last = last_closed(connection)
    month = None if last is None else last.next()
    if month is None or period_state(connection, month) != "SETTLED" or not takes_postings(connection, month):
        return None
    now = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    timezones = zones_in_use(connection)
    watched = months_to_watch(connection, month, timezones, now)
    windows = month_windows(connection, (*watched, month), timezones)
    return month if came_late(connection, windows, now) else None


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
