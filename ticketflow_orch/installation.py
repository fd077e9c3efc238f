"""The installation's row: whose database this is, and what decides about money in it, whichever process asks.

The environment says where things are; what is paid from when, which months there are and who is mailed stands here, so
that no two processes believe different things. Changes are kept with who made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, Engine, text

from ticketflow_orch.database import transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings

_MIGRATE = "run `ticketflow migrate`, which takes them over from the environment once"


@dataclass(frozen=True, slots=True)
class Installation:
    """What the database says of itself. `payouts_from` None: payouts are off. `mail_from` None: nothing is history.

    `id` names payments and events, see the restore. `routes_digest` is that of the delivery's routes; None: none were
    named yet.
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


def read_installation(connection: Connection) -> Installation:
    """The installation's row.

    Raises:
        InputError: nothing was taken over from the environment yet.
    """
    row = connection.execute(_READ).one()
    if row.business_timezone is None:
        raise InputError(f"This database does not say yet what decides about money in it; {_MIGRATE}.")
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
    )


def business_timezone(connection: Connection) -> str:
    """The IANA zone in which people read instants; UTC where nothing was taken over from the environment yet."""
    return str(connection.execute(_BUSINESS_TIMEZONE).scalar_one())


def adopt(engine: Engine, settings: Settings, by: str) -> bool:
    """Take over what decides from `settings`, unless the row says it already; returns whether it was done now."""
    values: Mapping[str, object] = {
        "business_timezone": settings.business_timezone,
        "first_month": Month.parse(settings.first_month).first_day,
        "payouts_from": Month.parse(settings.payouts_from).first_day if settings.payouts_from else None,
        "mail_from": settings.mail_from,
        "auto_close": settings.auto_close,
        "by": by,
    }
    with transaction(engine) as connection:
        return connection.execute(_ADOPT, values).rowcount == 1


def begin_to_pay(engine: Engine, first: Month, by: str) -> None:
    """Have organizations paid for months from `first` on, unless somebody has decided already from when on."""
    with transaction(engine) as connection:
        connection.execute(_PAY_FROM, {"first": first.first_day, "by": by})


_READ = text("SELECT * FROM installation")

_BUSINESS_TIMEZONE = text("SELECT coalesce(business_timezone, 'UTC') FROM installation")

_ADOPT = text("""
    UPDATE installation SET business_timezone = CAST(:business_timezone AS text),
        first_month = CAST(:first_month AS date), payouts_from = CAST(:payouts_from AS date),
        mail_from = CAST(:mail_from AS timestamptz), auto_close = CAST(:auto_close AS boolean),
        changed_by = CAST(:by AS text)
    WHERE business_timezone IS NULL
""")

_PAY_FROM = text("""
    UPDATE installation SET payouts_from = CAST(:first AS date), changed_by = CAST(:by AS text)
    WHERE payouts_from IS NULL
""")
