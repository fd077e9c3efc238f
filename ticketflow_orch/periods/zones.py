"""The time zones of organizations: which are in use, which nobody knows, and when a month is over in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from sqlalchemy import Connection, Row

from ticketflow_orch.db.installation import business_timezone
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.months import Month, known_zones, last_zone_to_finish, to_the_minute
from ticketflow_orch.periods.two_clocks import judged_at


def zones_in_use(connection: Connection) -> list[str]:
    """The IANA zones of all organizations that the locked tzdata package knows; see `unknown_zones`."""
    return [name for name in _distinct_zones(connection) if name in known_zones()]


def unknown_zones(connection: Connection) -> list[str]:
    """The zones of organizations that the locked tzdata package does not know: nobody can say when a month ends there.

    Organizations in one are parked, and nobody waits for them.
    """
    return [name for name in _distinct_zones(connection) if name not in known_zones()]


def _distinct_zones(connection: Connection) -> list[str]:
    # By one index probe a zone.
    return list(
        connection.exec_driver_sql(
            """
                WITH RECURSIVE distinct_zone (timezone) AS (
                    (SELECT timezone FROM organization ORDER BY timezone LIMIT 1)
                    UNION ALL
                    SELECT (SELECT timezone FROM organization WHERE timezone > distinct_zone.timezone
                            ORDER BY timezone LIMIT 1)
                    FROM distinct_zone WHERE timezone IS NOT NULL
                )
                SELECT timezone FROM distinct_zone WHERE timezone IS NOT NULL
            """
        ).scalars()
    )


def require_over(connection: Connection, month: Month, now: datetime) -> None:
    """Refuse a month that is not over in every zone in use, by `now` (aware) and by the database's clock.

    Raises:
        PreconditionFailed: it is not; names the last zone and when. Or this host's clock is far from the database's,
            see `judged_at`.
    """
    earlier = judged_at(connection, now, "settle nothing")
    timezone, ends_at = last_zone_to_finish(month, zones_in_use(connection) or ["UTC"])
    if earlier < ends_at:
        here = business_timezone(connection)
        raise PreconditionFailed(
            f"{month} is not over in {timezone} before {to_the_minute(ends_at, here)} ({here}), and it is "
            f"{to_the_minute(earlier, here)}; settle it from then on."
        )


def in_unknown_zones(
    connection: Connection, month: Month, months: Sequence[Month], cutoff: int
) -> Sequence[Row[tuple[int, str, date, str, bool]]]:
    """Who cannot be settled by a pass of `month` about `months`, because nobody knows when months end in their zones.

    Those active in `month` or with an opening balance that waits, and those with movements that may lie in one of
    `months`; a month too many is no harm: it is looked at for them when their zone is known. Columns:
    organization_id, external_ref, origin_month, error, and is_parked: whether a pass has left them out already.
    """
    unknown = unknown_zones(connection)
    if not unknown:
        return ()
    # Wherever they live, they are within a day of UTC.
    spans = {each: each.window("UTC") for each in months}
    return connection.exec_driver_sql(
        _IN_UNKNOWN_ZONES,
        {
            "month": month.first_day,
            "after": month.next().first_day,
            "cutoff": cutoff,
            "unknown": unknown,
            "months": [each.first_day for each in spans],
            "starts": [span.starts_at for span in spans.values()],
            "ends": [span.ends_at for span in spans.values()],
        },
    ).all()


_IN_UNKNOWN_ZONES = sql(__file__, "in_unknown_zones")
