"""Which months are due to be settled: over everywhere and not settled yet, or not since something came late."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month, Window, months_between
from ticketflow_orch.periods.state import (
    PeriodState,
    months_in,
    open_months,
    settled_before,
    takes_postings,
    touched_months,
)
from ticketflow_orch.periods.windows import month_windows
from ticketflow_orch.periods.zones import in_unknown_zones, require_over, unknown_zones, zones_in_use
from ticketflow_orch.settlement.late_movements import Unread, changed_months, months_to_watch, next_movement_id
from ticketflow_orch.settlement.passes import running_pass
from ticketflow_orch.settlement.posting import LARGEST_ID


def due_months(connection: Connection, now: datetime, first_month: Month) -> tuple[Month, ...]:
    """The months that a settlement at `now` (aware) should take on, in order: not settled, or with a pass running.

    A pass may run without a run: one that was killed, or that could not begin for writers, leaves it behind.
    """
    settled, running = _settled(connection), _running(connection)
    return tuple(
        month
        for month in months_over(connection, now, first_month)
        if (month not in settled or month in running) and takes_postings(connection, month)
    )


def late_months(connection: Connection) -> tuple[Month, ...]:
    """The settled months to settle again, in order: somebody can have changed since they were last read.

    The first that is not closed is so too when something came late for a closed month before it, because it takes that
    in. Without another pass all this would wait until somebody asks for one.
    """
    return tuple(
        month
        for month in open_months(connection)
        if takes_postings(connection, month) and is_changed(connection, month, LARGEST_ID)
    )


def is_changed(connection: Connection, month: Month, boundary: int) -> bool:
    """Whether a pass of `month` would find an organization that can have changed, by movements below `boundary`.

    Or one to leave out that was not left out before: until then the month lacks it without a word.
    """
    timezones = zones_in_use(connection)
    watched = months_to_watch(connection, month, timezones, boundary)
    windows = month_windows(connection, (*watched, month), timezones)
    if changed_months(connection, Unread.of(connection, windows, boundary, own=month)):
        return True
    return any(not row.is_parked for row in in_unknown_zones(connection, month, (*watched, month), boundary))


def needs_another_pass(connection: Connection, month: Month) -> bool:
    """Whether a pass of the settled `month` is running, with a run or without one, or one that began now would post."""
    return running_pass(connection, month) is not None or is_changed(connection, month, next_movement_id(connection))


def require_settleable(connection: Connection, month: Month, now: datetime, first_month: Month) -> None:
    """Refuse to settle `month` before it can be: by `now` (aware), and by the database's clock.

    Raises:
        InvalidInput: it is before `first_month`.
        PreconditionFailed: it is not over in every zone in use, or this host's clock and the database's disagree.
    """
    if month < first_month:
        raise InvalidInput(
            f"{month} is before {first_month}, the first month; `ticketflow installation set first_month {month}` "
            "lets it be settled, unless a month is closed."
        )
    require_over(connection, month, now)


def months_due_at(connection: Connection, tick: datetime, first_month: Month) -> tuple[Month, ...]:
    """The months that were due at `tick` (aware), an instant of the past: over by then, settled later or not yet.

    None that was never settled and lies before a closed one: nothing may be posted there, so nobody was to settle it.
    """
    earlier, settled = settled_before(connection, tick), _settled(connection)
    return tuple(
        month
        for month in months_over(connection, tick, first_month)
        if month not in earlier and (month in settled or takes_postings(connection, month))
    )


def months_over(connection: Connection, now: datetime, first_month: Month) -> tuple[Month, ...]:
    """All months that are over at `now` in every zone in use, from the first with movements or with a settlement on.

    A month that somebody settled before the first movement belongs to the row, and so do those between: books are
    closed in order. The movements of organizations in unknown zones count, or months that only they have sold in would
    lie before the books, read by nobody, when their zones are known.
    """
    zones, unknown = zones_in_use(connection), unknown_zones(connection)
    last = _last_over(zones, now)
    first = next(iter(touched_months(connection)), None)
    before = tuple(months_between(first_month, last if first is None else min(last, first)))
    for month in before[_first_with_any(connection, before) :]:
        if _has_movements(connection, _windows(month, zones, unknown)):
            first = month if first is None else min(month, first)
            break
    return () if first is None else tuple(months_between(first, last))


def last_month_over(connection: Connection, now: datetime) -> Month:
    """The last month that is over at `now` (aware) in every zone in use."""
    return _last_over(zones_in_use(connection), now)


def _last_over(zones: Sequence[str], now: datetime) -> Month:
    return min(Month.of_instant(now, timezone) for timezone in zones or ["UTC"]).previous()


def _settled(connection: Connection) -> set[Month]:
    return set(months_in(connection, PeriodState.SETTLED, PeriodState.CLOSING, PeriodState.CLOSED))


def _running(connection: Connection) -> set[Month]:
    days = connection.exec_driver_sql("SELECT month FROM settlement_pass WHERE state = 'RUNNING'").scalars()
    return {Month.of_day(day) for day in days}


def _windows(month: Month, zones: list[str], unknown: list[str]) -> dict[str, Window]:
    return {name: month.window(name) for name in zones} | dict.fromkeys(unknown, _anywhere(month))


def _first_with_any(connection: Connection, months: Sequence[Month]) -> int:
    """How many of `months` (in order) come before the first with a movement of anybody, wherever on earth they are."""
    windows = [_anywhere(month) for month in months]
    found = connection.exec_driver_sql(
        """
            WITH probed AS MATERIALIZED (
                SELECT * FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[])
                    WITH ORDINALITY AS probed (starts_at, ends_at, number)
                ORDER BY number
            )
            SELECT number FROM probed
            WHERE EXISTS (
                SELECT FROM money_movement WHERE occurred_at >= probed.starts_at AND occurred_at < probed.ends_at
            )
            LIMIT 1
        """,
        {"starts": [window.starts_at for window in windows], "ends": [window.ends_at for window in windows]},
    ).scalar_one_or_none()
    return len(months) if found is None else int(found) - 1


def _anywhere(month: Month) -> Window:
    """A window that holds the month of every zone: each lies within a day of UTC."""
    utc, day = month.window("UTC"), timedelta(days=1)
    return Window(utc.starts_at - day, utc.ends_at + day)


def _has_movements(connection: Connection, windows: dict[str, Window]) -> bool:
    return bool(windows) and bool(
        connection.exec_driver_sql(
            """
                SELECT EXISTS (
                    SELECT FROM money_movement
                    JOIN organization ON organization.id = organization_id
                    JOIN unnest(
                        %(timezones)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
                    ) AS time_window (timezone, starts_at, ends_at) USING (timezone)
                    WHERE occurred_at >= %(earliest)s::timestamptz AND occurred_at < %(latest)s::timestamptz
                        AND occurred_at >= starts_at AND occurred_at < ends_at
                )
            """,
            {
                "timezones": list(windows),
                "starts": [window.starts_at for window in windows.values()],
                "ends": [window.ends_at for window in windows.values()],
                "earliest": min(window.starts_at for window in windows.values()),
                "latest": max(window.ends_at for window in windows.values()),
            },
        ).scalar_one()
    )
