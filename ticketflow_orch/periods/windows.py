"""The time windows of months, fixed when a month is first planned: later passes go by what was fixed.

The rules of a zone may change between two settlements, also for instants that are over (a release of the zone database
that knows of a change of law too late). A month that has no windows yet begins where its neighbour was fixed to end,
so that no movement lies in two months or in none.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from ticketflow_orch.months import Month, Window

Windows = dict[Month, dict[str, Window]]


def fixed_windows(connection: Connection, months: Iterable[Month]) -> Windows:
    """For each of `months` each zone's window as it was fixed, for the zones that were in use then."""
    rows = connection.exec_driver_sql(
        """
            SELECT month, timezone, starts_at, ends_at FROM settlement_window
            WHERE month = ANY (%(months)s::date[])
        """,
        {"months": [month.first_day for month in months]},
    )
    windows: Windows = {}
    for row in rows:
        windows.setdefault(Month.of_day(row.month), {})[row.timezone] = Window(row.starts_at, row.ends_at)
    return windows


def month_windows(connection: Connection, months: Iterable[Month], timezones: Iterable[str]) -> Windows:
    """The windows of `months` in each of `timezones`: as they were fixed, or as they would be now."""
    months, timezones = list(months), list(timezones)
    around = {each for month in months for each in (month.previous(), month, month.next())}
    fixed = fixed_windows(connection, around)
    return {month: {name: _window(fixed, month, name) for name in timezones} for month in months}


def fix_windows(connection: Connection, months: Iterable[Month], timezones: Iterable[str]) -> None:
    """Fix the windows of `months` in those of `timezones` that have none."""
    windows = [
        (month.first_day, name, window)
        for month, zones in month_windows(connection, months, timezones).items()
        for name, window in zones.items()
    ]
    connection.exec_driver_sql(
        """
            INSERT INTO settlement_window (month, timezone, starts_at, ends_at)
            SELECT * FROM unnest(%(months)s::date[], %(timezones)s::text[],
                %(starts)s::timestamptz[], %(ends)s::timestamptz[])
            ON CONFLICT DO NOTHING
        """,
        {
            "months": [month for month, _, _ in windows],
            "timezones": [name for _, name, _ in windows],
            "starts": [window.starts_at for _, _, window in windows],
            "ends": [window.ends_at for _, _, window in windows],
        },
    )


def _window(fixed: Windows, month: Month, timezone: str) -> Window:
    before, own, after = (fixed.get(each, {}).get(timezone) for each in (month.previous(), month, month.next()))
    if own is not None:
        return own
    computed = month.window(timezone)
    return Window(
        computed.starts_at if before is None else before.ends_at,
        computed.ends_at if after is None else after.starts_at,
    )
