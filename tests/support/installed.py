"""What a database of a test has decided about money, where it is to be otherwise than in all others."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.installation import write
from ticketflow_orch.months import Month


def decide(engine: Engine, **values: Month | datetime | str | bool | None) -> None:
    """Let the database have `values`, whether they would be refused or not."""
    with transaction(engine) as connection:
        for name, value in values.items():
            plain: date | datetime | str | bool | None = value.first_day if isinstance(value, Month) else value
            write(connection, name, plain, "pytest")
