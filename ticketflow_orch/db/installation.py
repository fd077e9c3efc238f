"""The installation's row: whose database this is, and what decides about money in it, whichever process asks.

The environment says where things are; what is paid from when, which months there are and who is mailed stands here, so
that no two processes believe different things. Changes are kept with who made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, Row
from sqlalchemy.exc import ProgrammingError

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings

# What the code location needs to load, also where no database is: there the environment says it, default or not.
LOADED = ("business_timezone", "first_month")
# A clock that stands still may be set to the minute.
_AHEAD = timedelta(minutes=1)
_MIGRATE = "run `ticketflow migrate`, which takes them over from the environment once"

Value = str | datetime | bool | None


@dataclass(frozen=True, slots=True)
class Installation:
    """What the database says of itself. `payouts_from` None: payouts are off. `mail_from` None: no statement is mailed.

    `id` names payments and events, see the restore. `routes_digest` is what the delivery's routes come to; None: none
    were named yet. `rehearsal`: business time may run ahead of the database's clock here.
    """

    id: UUID
    business_timezone: str
    first_month: Month
    payouts_from: Month | None
    mail_from: datetime | None
    auto_close: bool
    routes_digest: str | None
    changed_at: datetime
    changed_by: str
    rehearsal: bool = False

    @property
    def values(self) -> Mapping[str, Value]:
        """What decides, by the names and in the terms of the settings."""
        return {
            "business_timezone": self.business_timezone,
            "first_month": str(self.first_month),
            "payouts_from": None if self.payouts_from is None else str(self.payouts_from),
            "mail_from": self.mail_from,
            "auto_close": self.auto_close,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which another process loads the code location as this database has it."""
        return {_variable(name): written(self.values[name]) for name in LOADED}

    def decided(self, settings: Settings) -> Settings:
        """`settings`, with what decides as the database has it."""
        return settings.model_copy(update=dict(self.values))


def read_installation(connection: Connection) -> Installation:
    """The installation's row.

    Raises:
        PreconditionFailed: nothing was taken over from the environment yet.
    """
    return _installation(connection.exec_driver_sql(_READ).one())


def require_agreement(connection: Connection, settings: Settings, *, loaded: bool = False) -> Installation:
    """The installation's row, unless `settings` say otherwise than it does.

    A variable that is not set agrees; but where the code location is `loaded`, its defaults were taken for real.

    Raises:
        InvalidInput: names the variable, both values, and what to do.
        PreconditionFailed: nothing was taken over yet, or what is in the outbox was named under another id.
    """
    row = connection.exec_driver_sql(_READ).one()
    installed = _installation(row)
    for fault in disagreements(installed, settings, row.database_now, loaded=loaded):
        raise InvalidInput(fault)
    for fault in other_names(connection, installed):
        raise PreconditionFailed(fault)
    return installed


def decided(connection: Connection, settings: Settings) -> Settings:
    """`settings`, with what decides about money as the database has it at this moment.

    Raises:
        PreconditionFailed: nothing was taken over from the environment yet.
    """
    return read_installation(connection).decided(settings)


def disagreements(
    installed: Installation, settings: Settings, database_now: datetime, *, loaded: bool = False
) -> Iterator[str]:
    """Each thing that `settings` say otherwise than the database, as a sentence; see `require_agreement`."""
    for name, value in installed.values.items():
        is_set = name in settings.model_fields_set
        said = getattr(settings, name)
        if said != value and (is_set or (loaded and name in LOADED)):
            fix = f"set it to {written(value)}" if name in LOADED else "unset it"
            yield (
                f"{said_here(settings, name)}, and the database says {written(value)}; {fix} and start again, or "
                f"change the database with `{_command(name)} {written(said)}`."
            )
    fixed = settings.fixed_clock
    if fixed is not None and fixed > database_now + _AHEAD and not installed.rehearsal:
        yield (
            f"TICKETFLOW_FIXED_CLOCK is {written(fixed)}, ahead of the database's clock, and this database is not made "
            "for rehearsals; unset it, or rehearse in a new database that `ticketflow migrate --rehearsal` prepares."
        )


def other_names(connection: Connection, installed: Installation) -> Iterator[str]:
    """That what is in the outbox was named under another id, if so: what is paid would be asked for again."""
    if connection.exec_driver_sql(_NAMED_OTHERWISE, {"installation": installed.id}).scalar_one():
        yield (
            f"The row of installation has the id {installed.id}, and what is in the outbox was named under another: a "
            "dump was restored without that row, and payouts would be asked for again under other names; restore the "
            "whole dump into a new database that nobody has migrated."
        )


def said_here(settings: Settings, name: str) -> str:
    """What `settings` say of `name` here, set or not, as the beginning of a sentence."""
    value = written(getattr(settings, name))
    is_set = name in settings.model_fields_set
    return f"{_variable(name)} " + (f"is {value} here" if is_set else f"is not set here, which means {value}")


def standing_still(installed: Installation, settings: Settings) -> str | None:
    """What to say of a clock that is fixed where business is for real: what comes due after it is never done."""
    if settings.fixed_clock is None or installed.rehearsal:
        return None
    return f"business time stands still at {written(settings.fixed_clock)} here, and what comes due later is not done"


def is_decided(connection: Connection) -> bool:
    """Whether anything was taken over yet."""
    return bool(connection.exec_driver_sql(_IS_DECIDED).scalar_one())


def fill(connection: Connection, settings: Settings, by: str, *, rehearsal: bool) -> bool:
    """Let an empty row have what `settings` say, in the caller's transaction; returns whether it was empty."""
    values: Mapping[str, object] = {
        "business_timezone": settings.business_timezone,
        "first_month": Month.parse(settings.first_month).first_day,
        "payouts_from": Month.parse(settings.payouts_from).first_day if settings.payouts_from else None,
        "mail_from": settings.mail_from,
        "auto_close": settings.auto_close,
        "rehearsal": rehearsal,
        "by": by,
    }
    return connection.exec_driver_sql(_FILL, values).rowcount == 1


def locked(connection: Connection) -> Installation:
    """The row, which nobody else changes before the caller's transaction ends.

    Raises:
        PreconditionFailed: the session's role may not change it, as that of runs.
    """
    try:
        return _installation(connection.exec_driver_sql(_READ_FOR_CHANGE).one())
    except ProgrammingError as error:
        if not isinstance(error.orig, InsufficientPrivilege):
            raise
        raise PreconditionFailed(
            "The role in TICKETFLOW_DATABASE_URL may not change what is decided here; name the owner of the schema."
        ) from None


def write(connection: Connection, name: str, value: str | date | datetime | bool | None, by: str) -> None:
    """Let the database have another value, in the caller's transaction; whether it may is the caller's to judge."""
    connection.exec_driver_sql(_WRITES[name], {"value": value, "by": by})


@dataclass(frozen=True, slots=True)
class Change:
    """A value that was changed, by whom and, by the database's clock, when. `role`: the session's database role."""

    name: str
    before: str
    after: str
    at: datetime
    by: str
    role: str


def changes(connection: Connection) -> tuple[Change, ...]:
    """All changes that were ever made, the oldest first."""
    return tuple(
        Change(row.name, row.before or "none", row.after or "none", row.changed_at, row.changed_by, row.changed_role)
        for row in connection.exec_driver_sql(_CHANGES)
    )


def written(value: Value) -> str:
    """A value as a variable has it; `none` where there is none."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else value


def _installation(row: Row[tuple[object, ...]]) -> Installation:
    if row.business_timezone is None:
        raise PreconditionFailed(f"This database does not say yet what decides about money in it; {_MIGRATE}.")
    return Installation(
        id=row.id,
        business_timezone=row.business_timezone,
        first_month=Month.of_day(row.first_month),
        payouts_from=None if row.payouts_from is None else Month.of_day(row.payouts_from),
        mail_from=row.mail_from,
        auto_close=row.auto_close,
        routes_digest=row.routes_digest,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
        rehearsal=row.rehearsal,
    )


def business_timezone(connection: Connection) -> str:
    """The IANA zone in which people read instants; UTC where nothing was taken over from the environment yet."""
    return str(connection.exec_driver_sql(_BUSINESS_TIMEZONE).scalar_one())


def _variable(name: str) -> str:
    return f"TICKETFLOW_{name.upper()}"


def _command(name: str) -> str:
    return "ticketflow payouts from" if name == "payouts_from" else f"ticketflow installation set {name}"


_READ = "SELECT *, clock_timestamp() AS database_now FROM installation"

_NAMED_OTHERWISE = sql(__file__, "named_otherwise")

_READ_FOR_CHANGE = "SELECT * FROM installation FOR UPDATE"

_IS_DECIDED = "SELECT business_timezone IS NOT NULL FROM installation"

_CHANGES = "SELECT * FROM installation_change ORDER BY id"

_BUSINESS_TIMEZONE = "SELECT coalesce(business_timezone, 'UTC') FROM installation"

_FILL = sql(__file__, "fill")

_WRITES = {
    name: sql(__file__, "write", column=name, type=kind)
    for name, kind in (
        ("business_timezone", "text"),
        ("first_month", "date"),
        ("payouts_from", "date"),
        ("mail_from", "timestamptz"),
        ("auto_close", "boolean"),
        ("routes_digest", "text"),
    )
}
