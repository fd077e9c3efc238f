"""What comes late for months in which nothing may be posted any more: who takes it in, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ticketflow_orch.months import Month, Window, months_between


def last_closed(connection: Connection) -> Month | None:
    """The last month whose books are closed; months are closed in order, so nothing is posted up to it."""
    day = connection.execute(text("SELECT max(month) FROM settlement_period WHERE state = 'CLOSED'")).scalar_one()
    return None if day is None else Month.of_day(day)


def takes_postings(connection: Connection, month: Month) -> bool:
    """Whether anything may be posted in `month`: neither it nor a later one is closed or being closed."""
    return not connection.execute(
        text("SELECT EXISTS (SELECT FROM settlement_period WHERE month >= :month AND state IN ('CLOSING', 'CLOSED'))"),
        {"month": month.first_day},
    ).scalar_one()


def months_to_watch(connection: Connection, month: Month, timezones: list[str], cutoff: datetime) -> list[Month]:
    """The months whose late movements a pass of `month` takes in: all before it, if it is the first not closed.

    Those are the closed ones, and before them any in which nobody had sold anything when they were closed.

    A month that is being closed takes in nothing and lets nobody else do so: should it turn out not to be fit, what is
    posted about it is still in its own entries alone.
    """
    last = last_closed(connection)
    if last is None or last.next() != month:
        return []
    days = connection.execute(text("SELECT month FROM settlement_period WHERE state = 'CLOSED'")).scalars()
    closed = {Month.of_day(day) for day in days}
    return sorted(closed | _months_before(connection, min(closed), timezones, cutoff))


def late_windows(windows: Mapping[Month, Mapping[str, Window]]) -> dict[str, Any]:
    """The parameters by which `LATE` learns which months are watched, and when they are in each time zone."""
    every = [(month, name, window) for month, zones in windows.items() for name, window in zones.items()]
    return {
        "months": [month.first_day for month, _, _ in every],
        "timezones": [name for _, name, _ in every],
        "starts": [window.starts_at for _, _, window in every],
        "ends": [window.ends_at for _, _, window in every],
    }


def came_late(connection: Connection, windows: Mapping[Month, Mapping[str, Window]], cutoff: datetime) -> bool:
    """Whether anything was recorded, before `cutoff`, for the months of `windows` since they were last looked at."""
    return bool(connection.execute(_CAME_LATE, late_windows(windows) | {"cutoff": cutoff}).scalar_one())


def _months_before(connection: Connection, first: Month, timezones: list[str], cutoff: datetime) -> set[Month]:
    """The months before the first closed one that movements came late for, or in which somebody is still parked."""
    starts_at = max(first.window(name).starts_at for name in timezones) if timezones else None
    row = connection.execute(_BEFORE, {"first": first.first_day, "starts_at": starts_at, "cutoff": cutoff}).one()
    months = {Month.of_instant(row.oldest, name) for name in timezones} if row.oldest is not None else set()
    months |= {Month.of_day(row.parked)} if row.parked is not None else set()
    return set(months_between(min(months), first.previous())) if months else set()


# Whoever was at work in a month at its first closing stood in the way of it, so only what was recorded since matters.
# A pass that began when the month before it was closed has looked at all months before.
_WATCHED = """
    done.cutoff > (
        SELECT closed_at FROM settlement_period AS before
        WHERE before.month = CAST(done.month - interval '1 month' AS date))"""

_FIRST_LOOK = """
    coalesce((
        SELECT max(cutoff) FROM settlement_pass AS own
        WHERE own.state = 'DONE' AND own.month = (SELECT min(month) FROM settlement_period WHERE state = 'CLOSED')
    ), '-infinity')"""

_BEFORE = text(f"""
    SELECT (
        SELECT min(occurred_at) FROM money_movement
        WHERE recorded_at >= greatest({_FIRST_LOOK}, (
                SELECT max(done.cutoff) FROM settlement_pass AS done WHERE done.state = 'DONE' AND {_WATCHED}))
            AND recorded_at < CAST(:cutoff AS timestamptz) AND occurred_at < CAST(:starts_at AS timestamptz)
    ) AS oldest, (
        SELECT min(month) FROM parked_organization
        WHERE month < CAST(:first AS date) AND error IS NOT NULL AND resolved_at IS NULL
    ) AS parked
""")

_LOOKED_AT = f"""
    watched AS MATERIALIZED (
        SELECT * FROM unnest(
            CAST(:months AS date[]), CAST(:timezones AS text[]),
            CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
        ) AS month_window (origin_month, timezone, starts_at, ends_at)
    ), looked_at AS MATERIALIZED (
        SELECT origin_month, coalesce(max(done.cutoff), {_FIRST_LOOK}) AS cutoff
        FROM (SELECT DISTINCT origin_month FROM watched) AS origin
        LEFT JOIN settlement_pass AS done ON done.state = 'DONE' AND (
            done.month = origin_month
            OR (done.month > origin_month AND {_WATCHED})
            OR EXISTS (
                SELECT FROM settlement_chunk AS chunk
                WHERE (chunk.month, chunk.pass, chunk.origin_month) = (done.month, done.pass, origin.origin_month)))
        GROUP BY origin_month
    )"""

_RECORDED_SINCE = """
    FROM money_movement
    JOIN organization ON organization.id = organization_id
    JOIN watched USING (timezone)
    JOIN looked_at ON looked_at.origin_month = watched.origin_month
    WHERE recorded_at >= (SELECT min(cutoff) FROM looked_at) AND recorded_at >= looked_at.cutoff
        AND recorded_at < CAST(:cutoff AS timestamptz)
        AND occurred_at >= watched.starts_at AND occurred_at < watched.ends_at"""

_CAME_LATE = text(f"WITH {_LOOKED_AT} SELECT EXISTS (SELECT {_RECORDED_SINCE})")

# The organizations to look at again, by watched month: for whom something was recorded since the month was last looked
# at, or who are parked in it.
LATE = f"""
    {_LOOKED_AT}, late AS (
        SELECT DISTINCT looked_at.origin_month, organization.id
        {_RECORDED_SINCE}
        UNION
        SELECT looked_at.origin_month, organization_id
        FROM parked_organization JOIN looked_at ON looked_at.origin_month = month
        WHERE error IS NOT NULL AND resolved_at IS NULL
    )"""

# Cut into chunks of `size` of them, which hold those in between too.
LATE_CHUNKS = f"""
    WITH {LATE}, numbered AS (
        SELECT *, (row_number() OVER (PARTITION BY origin_month ORDER BY id) - 1) / CAST(:size AS bigint) AS chunk
        FROM late
    ), late_chunk (origin_month, low_id, high_id) AS (
        SELECT origin_month, min(id), max(id) FROM numbered GROUP BY origin_month, chunk
    )"""

PLAN_LATE = text(f"""
    INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id)
    {LATE_CHUNKS}
    SELECT CAST(:month AS date), CAST(:pass AS integer), origin_month, low_id, high_id FROM late_chunk
""")
