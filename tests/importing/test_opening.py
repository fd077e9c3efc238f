"""Opening balances, the file by which a platform brings along what it carried elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.books import FIRST, JANUARY, balances, close, settle_and_close
from tests.support.folders import Rows, column, story, write_folder
from tests.support.rows import add_organization
from tests.support.sessions import two_sessions
from tests.support.settled import settle
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import Counts, ImportRefused, ImportResult, import_folder, undo_import

DEBT = {"organization_ref": "o1", "currency": "EUR", "amount": "-700"}
CREDIT = {"organization_ref": "o2", "currency": "JPY", "amount": "300"}


def bring(engine: Engine, folder: Path, rows: Rows, ending: str = ".csv") -> ImportResult:
    return import_folder(engine, write_folder(folder, {"opening_balances": rows}, ending), FIRST)


def problems(engine: Engine, folder: Path, rows: Rows) -> list[tuple[int, str, str, str]]:
    with pytest.raises(ImportRefused) as refused:
        bring(engine, folder, rows)
    return [(one.line, one.column, one.value, one.reason) for one in refused.value.problems]


@pytest.fixture
def organizations(engine: Engine) -> tuple[int, int]:
    return add_organization(engine, external_ref="o1"), add_organization(engine, external_ref="o2", currency="JPY")


@pytest.mark.every_server
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_opening_balances_come_with_the_organizations_they_belong_to(
    engine: Engine, tmp_path: Path, ending: str
) -> None:
    given = story() | {"opening_balances": [DEBT, CREDIT]}
    result = import_folder(engine, write_folder(tmp_path, given, ending), FIRST)
    assert result.new == Counts(2, 3, 4, 7, 2)
    assert str(result).endswith("2 organizations, 3 events, 4 reservations, 7 money movements and 2 opening balances.")
    assert column(engine, "SELECT amount FROM opening_balance ORDER BY amount") == [-700, 300]
    assert column(engine, "SELECT opening_balances FROM data_import") == [2]


def test_a_repeat_brings_nothing_and_another_amount_is_refused(
    engine: Engine, tmp_path: Path, organizations: tuple[int, int]
) -> None:
    assert bring(engine, tmp_path, [DEBT]).new.total == 1
    again = bring(engine, tmp_path, [DEBT, DEBT | {"currency": "USD"}])
    assert (again.new.total, again.existing.total) == (1, 1)
    assert problems(engine, tmp_path, [DEBT | {"amount": "-701"}]) == [
        (2, "amount", "-701", "differs from the row that is there already, which holds '-700'")
    ]


def test_every_bad_row_is_named(engine: Engine, tmp_path: Path, organizations: tuple[int, int]) -> None:
    rows = [
        DEBT,
        DEBT | {"organization_ref": "o9"},
        CREDIT | {"currency": "XXZ"},
        CREDIT | {"amount": "0"},
        DEBT | {"amount": "7.00"},
        DEBT | {"amount": "5"},
    ]
    assert problems(engine, tmp_path, rows) == [
        (3, "organization_ref", "o9", "names no organization of the folder or the database"),
        (4, "currency", "XXZ", "is no known currency code"),
        (5, "amount", "0", "must not be zero"),
        (6, "currency", "EUR", "stands on line 2 already"),
        (6, "amount", "7.00", "is not a whole number from -9223372036854775807 to 9223372036854775807"),
        (7, "currency", "EUR", "stands on line 2 already"),
    ]
    assert column(engine, "SELECT count(*) FROM opening_balance") == [0]


def test_what_is_brought_along_after_the_first_balance_comes_too_late(
    engine: Engine, tmp_path: Path, organizations: tuple[int, int]
) -> None:
    settle_and_close(engine, JANUARY)
    assert problems(engine, tmp_path, [DEBT]) == [
        (2, "organization_ref", "o1", "has balances in this currency since 2026-01, which say what it is owed; correct "
         "them by a MANUAL movement")
    ]  # fmt: skip
    bring(engine, tmp_path, [DEBT | {"currency": "USD"}])
    settle_and_close(engine, JANUARY.next())
    assert balances(engine, "month", "opening", where="currency = 'USD'") == [(JANUARY.next().first_day, -700)]
    # In a closed balance it is still the row that was imported.
    assert bring(engine, tmp_path, [DEBT | {"currency": "USD"}]).existing.total == 1


def test_an_undo_takes_opening_balances_back_until_a_balance_opens_with_them(
    engine: Engine, tmp_path: Path, organizations: tuple[int, int]
) -> None:
    first = bring(engine, tmp_path, [DEBT]).import_id
    assert first is not None
    assert undo_import(engine, first).removed == Counts(0, 0, 0, 0, 1)
    second = bring(engine, tmp_path, [DEBT]).import_id
    assert second is not None
    settle(engine, JANUARY)
    close(engine, JANUARY)
    with pytest.raises(TicketflowError, match=r"the books of 2026-01 open with what it brought for organization 'o1'"):
        undo_import(engine, second)
    assert column(engine, "SELECT amount FROM opening_balance") == [-700]


def test_an_organization_with_an_opening_balance_from_elsewhere_is_not_taken_back(
    engine: Engine, tmp_path: Path
) -> None:
    import_id = import_folder(engine, write_folder(tmp_path, story()), FIRST).import_id
    assert import_id is not None
    for kind in story():
        (tmp_path / f"{kind}.csv").unlink()
    bring(engine, tmp_path, [DEBT])
    with pytest.raises(TicketflowError, match=r"a later opening_balance depends on one of its rows in organization"):
        undo_import(engine, import_id)


def test_an_undo_that_races_a_closing_leaves_what_a_balance_opens_with(
    engine: Engine, tmp_path: Path, organizations: tuple[int, int]
) -> None:
    import_id = bring(engine, tmp_path, [DEBT]).import_id
    assert import_id is not None
    settle(engine, JANUARY)
    taking = "UPDATE opening_balance SET balance_month = '2026-01-01'"
    with two_sessions(engine) as (closer, undoer):
        undoer.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        undoer.run("SELECT FROM opening_balance")
        closer.run("UPDATE settlement_period SET state = 'CLOSING'")
        closer.run(taking)
        undoing = undoer.start("DELETE FROM opening_balance")
        assert undoer.waits()
        closer.commit()
        assert "could not serialize access" in str(undoing.exception(10))
    assert column(engine, "SELECT count(*) FROM opening_balance") == [1]
