"""The time windows of months, fixed when a month is first planned: whoever comes later goes by what was fixed.

The rules of a zone may change between two settlements, also for instants that are over (a release of the zone database
that knows of a change of law too late). A month that has no windows yet begins where its neighbour was fixed to end,
so that no movement lies in two months or in none.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

from ticketflow_orch.months import Month, Window


def fixed_windows(connection: Connection, month: Month) -> dict[str, Window]:
    """Each zone's window of `month` as it was fixed, for the zones that were in use then."""
    return _fixed(connection, month).get(month, {})


def month_windows(connection: Connection, month: Month, timezones: Iterable[str]) -> dict[str, Window]:
    """The window of `month` in each of `timezones`: as it was fixed, or as it would be now."""
    fixed = _fixed(connection, month.previous(), month, month.next())
    before, own, after = (fixed.get(each, {}) for each in (month.previous(), month, month.next()))
    windows = {}
    for name in timezones:
        computed = month.window(name)
        windows[name] = own.get(name) or Window(
            before[name].ends_at if name in before else computed.starts_at,
            after[name].starts_at if name in after else computed.ends_at,
        )
    return windows


def fix_windows(connection: Connection, month: Month, timezones: Iterable[str]) -> None:
    """Fix the windows of `month` in those of `timezones` that have none."""
    windows = month_windows(connection, month, timezones)
    connection.execute(
        text("""
            INSERT INTO settlement_window (month, timezone, starts_at, ends_at)
            SELECT CAST(:month AS date), * FROM unnest(
                CAST(:timezones AS text[]), CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[]))
            ON CONFLICT DO NOTHING
        """),
        {
            "month": month.first_day,
            "timezones": list(windows),
            "starts": [window.starts_at for window in windows.values()],
            "ends": [window.ends_at for window in windows.values()],
        },
    )


def _fixed(connection: Connection, *months: Month) -> dict[Month, dict[str, Window]]:
    rows = connection.execute(
        text("""
            SELECT month, timezone, starts_at, ends_at FROM settlement_window
            WHERE month = ANY (CAST(:months AS date[]))
        """),
        {"months": [month.first_day for month in months]},
    )
    windows: dict[Month, dict[str, Window]] = {}
    for row in rows:
        windows.setdefault(Month.of_day(row.month), {})[row.timezone] = Window(row.starts_at, row.ends_at)
    return windows
