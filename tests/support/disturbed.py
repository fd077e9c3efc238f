"""What disturbs a settlement or a closing, and what is then said and left behind."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.books import (
    FIRST,
    breaches,
)
from tests.support.folders import write_folder
from tests.support.installed import decide
from tests.support.payable import rows
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import settle
from tests.support.unattended import doomed
from ticketflow_orch.importing import import_folder
from ticketflow_orch.importing.staging import Progress
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.snapshot import read_situation
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement import IncompleteSettlementError, invariants

DECEMBER = Month(2025, 12)
MOVEMENT = {
    "reservation_ref": "", "kind": "CAPTURE", "currency": "EUR", "amount": "100000", "commission_rate_bps": "1000",
    "commission_tax_bps": "2000", "reverses_ref": "", "is_void": "", "reason": "",
}  # fmt: skip
OWED = 88_000  # of a capture of 100,000


def import_rows(engine: Engine, folder: Path, progress: Progress | None = None, **rows: list[dict[str, str]]) -> int:
    """Import the rows by kind; returns the import's id."""
    result = import_folder(engine, write_folder(folder, rows), FIRST, progress)
    assert result.import_id is not None
    return result.import_id


def all_is_well(engine: Engine) -> bool:
    """Whether no check has anything to say about any month, closed or not."""
    with engine.connect() as connection:
        months = connection.execute(text("SELECT month FROM settlement_period")).scalars()
        dishonest = [invariants.dishonest_organizations(connection, Month.of_day(day)).count for day in months.all()]
    return breaches(engine) == [] and not any(dishonest)


def states(engine: Engine) -> dict[str, str]:
    return dict(rows(engine, "SELECT to_char(month, 'YYYY-MM'), state FROM settlement_period"))  # type: ignore[arg-type]


def health(engine: Engine, after: timedelta = timedelta(0)) -> list[str]:
    """What health says on 5 May 2026, `after` so long a time of which the database saw nothing."""
    decide(engine, first_month=FIRST)
    settings = Settings(fixed_clock=instant("2026-05-05T12:00"), first_month=str(FIRST))
    situation = read_situation(engine, settings)
    later = replace(situation, database_now=situation.database_now + after)
    return list(problems(later, "Europe/Madrid", timedelta(days=30)))


def sold(engine: Engine, at: str = "2026-01-10T10:00", **values: Any) -> int:
    """An organization that sold for 100,000."""
    organization = add_organization(engine, **values)
    add_movement(engine, organization, 100_000, at)
    return organization


def killed(engine: Engine, month: Month) -> None:
    """A run of `month` that is killed before its first chunk is done."""
    with doomed(engine, at="settlement_chunk SET state = 'DONE'") as dying:
        settle(dying, month)
    assert rows(engine, "SELECT state FROM settlement_pass ORDER BY pass DESC LIMIT 1") == [("RUNNING",)]


def terminated(engine: Engine, month: Month) -> None:
    """A run of `month` that is terminated in the UI."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(IncompleteSettlementError, match="was stopped"):
        settle(engine, month, stop=stop)


def kept_waiting(engine: Engine, month: Month) -> None:
    """A run of `month` that ends because somebody is still writing."""
    organization = add_organization(engine)
    with engine.connect() as writer:
        writer.execute(
            text("""
                INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
                    commission_tax_bps, occurred_at)
                VALUES ('long', :id, 'CAPTURE', 'EUR', 5, 0, 0, '2026-02-10Z')
            """),
            {"id": organization},
        )
        with pytest.raises(IncompleteSettlementError, match="Still writing"):
            settle(engine, month, writer_wait=0.01)
        writer.commit()


def poisoned(engine: Engine, organization: int, at: str = "2026-01-10T10:00") -> list[int]:
    """Enter amounts whose sum no ledger can hold."""
    return [add_movement(engine, organization, 2**62, at) for _ in range(3)]
