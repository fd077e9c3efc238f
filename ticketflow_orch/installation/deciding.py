"""Changing what decides about money in a database: judged before it is written, and kept with who did it."""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.installation import fill, is_decided, locked, said_here, write, written
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.paid_from import in_words, judged, paid_of_closed
from ticketflow_orch.periods.state import PERIODS, PeriodState, months_in
from ticketflow_orch.periods.zones import zones_in_use
from ticketflow_orch.settings import Settings, parse_setting

CHANGEABLE = ("business_timezone", "first_month", "mail_from", "auto_close")
_ELSEWHERE = {
    "payouts_from": "`ticketflow payouts from YYYY-MM` changes it, and says what would be paid",
    "routes": "`ticketflow installation accept-routes` changes them, and says how they differ",
    "id": "payments and events are named by it, so it never changes",
    "rehearsal": "it is said when a database is made: `ticketflow migrate --rehearsal`",
}
_NONE = "none"


def adopt(engine: Engine, settings: Settings, by: str, *, rehearsal: bool = False) -> bool:
    """Take over what decides from `settings`, unless the database says it already; returns whether it was done now.

    Raises:
        InvalidInput: a database that has worked without it would leave months behind, or pay closed ones, by what
            `settings` say.
        PreconditionFailed: `rehearsal` is wanted of a database that was made for real, or holds organizations.
    """
    with transaction(engine) as connection:
        if rehearsal:
            _require_new(connection)
        if is_decided(connection):
            return False
        _require_sound(connection, settings)
        judged(connection, by)
        return fill(connection, settings, by, rehearsal=rehearsal)


def change(engine: Engine, name: str, value: str, by: str) -> tuple[str, str]:
    """Let the database have another `value` of `name`; returns the value before and after, as variables have them.

    Raises:
        InvalidInput: there is no such value, or it is not changed so.
        PreconditionFailed: months or movements that are there would be left behind; nothing is changed.
    """
    if name not in CHANGEABLE:
        why = _ELSEWHERE.get(name, f"name one of {', '.join(CHANGEABLE)}")
        raise InvalidInput(f"{name} cannot be set: {why}.")
    wanted = None if name == "mail_from" and value == _NONE else parse_setting(name, value)
    with transaction(engine) as connection:
        installed = locked(connection)
        before = installed.values[name]
        if name == "first_month":
            _require_fit(connection, installed.first_month, Month.parse(value))
        if wanted != before:
            write(connection, name, Month.parse(value).first_day if name == "first_month" else wanted, by)
    return written(before), written(wanted)


def _require_new(connection: Connection) -> None:
    row = connection.exec_driver_sql(_NEW).one()
    if not row.rehearsal and (row.is_decided or row.has_organizations):
        raise PreconditionFailed(
            "This database is not made for rehearsals, and becomes none; name a new one and "
            "`ticketflow migrate --rehearsal` it."
        )


def _require_sound(connection: Connection, settings: Settings) -> None:
    """Refuse what `settings` say where it is wrong for what an older version did in the database."""
    first = Month.parse(settings.first_month)
    begun = connection.exec_driver_sql(_FIRST_BEGUN, {"then": first.first_day}).scalar_one()
    if begun is not None:
        month = Month.of_day(begun)
        raise InvalidInput(
            f"{said_here(settings, 'first_month')}, and {month} has begun to be settled in this database; set it to "
            f"{month} or an earlier month, then migrate again."
        )
    pays = paid_of_closed(connection, Month.parse(settings.payouts_from)) if settings.payouts_from else ()
    if pays:
        raise InvalidInput(
            f"{said_here(settings, 'payouts_from')}, by which closed months pay {in_words(pays)}; unset it and migrate "
            f"again, then `ticketflow payouts from {settings.payouts_from}`, which asks whether that is right."
        )


def _require_fit(connection: Connection, now: Month, then: Month) -> None:
    """Refuse `then` as the first month where months would be left behind, or would come too late."""
    if then < now:
        closed = next(iter(months_in(connection, PeriodState.CLOSING, PeriodState.CLOSED)), None)
        if closed is not None and then < closed:
            raise PreconditionFailed(
                f"first_month cannot be {then}: {closed} is closed, and nothing before it will be; enter "
                "what is owed from before as opening balances."
            )
        return
    begun = connection.exec_driver_sql(_FIRST_BEGUN, {"then": then.first_day}).scalar_one()
    if begun is not None:
        raise PreconditionFailed(
            f"first_month cannot be {then}: {Month.of_day(begun)} has begun to be settled, and the months after it "
            "would wait for it for ever."
        )
    zones = zones_in_use(connection)
    starts = [then.window(zone).starts_at for zone in zones]
    if not zones:
        return
    parameters = {"zones": zones, "starts": starts, "latest": max(starts)}
    earliest = connection.exec_driver_sql(_FIRST_MOVEMENT, parameters).scalar_one_or_none()
    if earliest is not None:
        raise PreconditionFailed(
            f"first_month cannot be {then}: nobody would settle the movements before it, such as {earliest!r}."
        )


_NEW = """
    SELECT rehearsal, business_timezone IS NOT NULL AS is_decided,
        EXISTS (SELECT FROM organization) AS has_organizations
    FROM installation FOR UPDATE OF installation
"""

_FIRST_BEGUN = sql(__file__, "first_begun", periods=PERIODS)

# In its organization's own zone.
_FIRST_MOVEMENT = """
    SELECT money_movement.external_ref
    FROM money_movement
    JOIN organization ON organization.id = organization_id
    JOIN unnest(%(zones)s::text[], %(starts)s::timestamptz[]) AS beginning (timezone, starts_at)
        USING (timezone)
    WHERE occurred_at < %(latest)s::timestamptz AND occurred_at < starts_at
    ORDER BY occurred_at LIMIT 1
"""
