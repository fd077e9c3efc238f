"""Changing what decides about money in a database: judged before it is written, and kept with who did it."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, text

from ticketflow_orch.database import transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.installation import locked, write, written
from ticketflow_orch.months import Month
from ticketflow_orch.settings import parse_setting
from ticketflow_orch.settlement.zones import zones_in_use

CHANGEABLE = ("business_timezone", "first_month", "mail_from", "auto_close")
_ELSEWHERE = {
    "payouts_from": "`ticketflow payouts from YYYY-MM` changes it, and says what would be paid",
    "routes": "`ticketflow installation accept-routes` changes them, and says how they differ",
    "id": "payments and events are named by it, so it never changes",
    "rehearsal": "it is said when a database is made: `ticketflow migrate --rehearsal`",
}
_NONE = "none"


def change(engine: Engine, name: str, value: str, by: str) -> tuple[str, str]:
    """Let the database have another `value` of `name`; returns the value before and after, as variables have them.

    Raises:
        InputError: there is no such value, it is not changed so, or the change would be wrong; nothing is changed.
    """
    if name not in CHANGEABLE:
        why = _ELSEWHERE.get(name, f"name one of {', '.join(CHANGEABLE)}")
        raise InputError(f"{name} cannot be set: {why}.")
    wanted = None if name == "mail_from" and value == _NONE else parse_setting(name, value)
    with transaction(engine) as connection:
        installed = locked(connection)
        before = installed.values[name]
        if name == "first_month":
            _require_fit(connection, installed.first_month, Month.parse(value))
        if wanted != before:
            write(connection, name, Month.parse(value).first_day if name == "first_month" else wanted, by)
    return written(before), written(wanted)


def _require_fit(connection: Connection, now: Month, then: Month) -> None:
    """Raise InputError where the first month cannot become `then`: months would be left behind, or come too late."""
    if then < now:
        closed = connection.execute(_FIRST_CLOSED).scalar_one()
        if closed is not None:
            raise InputError(
                f"first_month cannot be {then}: {Month.of_day(closed)} is closed, and nothing before it will be; enter "
                "what is owed from before as opening balances."
            )
        return
    begun = connection.execute(_FIRST_BEGUN, {"then": then.first_day}).scalar_one()
    if begun is not None:
        raise InputError(
            f"first_month cannot be {then}: {Month.of_day(begun)} has begun to be settled, and the months after it "
            "would wait for it for ever."
        )
    zones = zones_in_use(connection)
    starts = [then.window(zone).starts_at for zone in zones]
    if not zones:
        return
    parameters = {"zones": zones, "starts": starts, "latest": max(starts)}
    earliest = connection.execute(_FIRST_MOVEMENT, parameters).scalar_one_or_none()
    if earliest is not None:
        raise InputError(
            f"first_month cannot be {then}: nobody would settle the movements before it, such as {earliest!r}."
        )


_FIRST_CLOSED = text("SELECT min(month) FROM settlement_period WHERE state IN ('CLOSING', 'CLOSED')")

_FIRST_BEGUN = text("""
    SELECT min(month) FROM (
        SELECT month FROM settlement_period UNION ALL SELECT month FROM settlement_pass
    ) AS begun
    WHERE month < CAST(:then AS date)
""")

# In its organization's own zone.
_FIRST_MOVEMENT = text("""
    SELECT money_movement.external_ref
    FROM money_movement
    JOIN organization ON organization.id = organization_id
    JOIN unnest(CAST(:zones AS text[]), CAST(:starts AS timestamptz[])) AS beginning (timezone, starts_at)
        USING (timezone)
    WHERE occurred_at < CAST(:latest AS timestamptz) AND occurred_at < starts_at
    ORDER BY occurred_at LIMIT 1
""")
