"""History that is imported: from when on its organizations are paid, and what the next closing would pay of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    APRIL,
    FEBRUARY,
    FIRST,
    JANUARY,
    MARCH,
    settle_and_close,
)
from tests.support.folders import Rows, story, write_folder
from tests.support.history import add_sales
from tests.support.payable import pay_from, rows
from tests.support.rows import add_organization
from ticketflow_orch.importing import ImportRefused, ImportResult, import_folder
from ticketflow_orch.payouts.paid_from import set_paid_from


def bring(engine: Engine, folder: Path, *months: str | None) -> ImportResult:
    """Import organizations that are paid from these months on; None: the file has no such column."""
    organizations: Rows = [
        story()["organizations"][0]
        | {"external_ref": f"o{number}"}
        | ({} if month is None else {"payouts_from": month})
        for number, month in enumerate(months, 1)
    ]
    return import_folder(engine, write_folder(folder, {"organizations": organizations}), FIRST)


def test_an_import_says_from_when_on_an_organization_is_paid(engine: Engine, tmp_path: Path) -> None:
    bring(engine, tmp_path, "2026-03", "")
    found = "SELECT payouts_from FROM organization ORDER BY external_ref"
    assert rows(engine, found) == [(date(2026, 3, 1),), (None,)]
    # As it is there, without the column, and after somebody has changed it.
    assert bring(engine, tmp_path, "2026-03", "").import_id is None
    assert bring(engine, tmp_path, None, None).import_id is None
    set_paid_from(engine, APRIL, "ana", organization="o1")
    assert bring(engine, tmp_path, "2026-03", "").import_id is None
    with pytest.raises(ImportRefused) as refused:
        bring(engine, tmp_path, "2026-05", "2026-13")
    assert [(one.line, one.value, one.reason) for one in refused.value.problems] == [
        (2, "2026-05", "differs from the row that is there already, which holds '2026-04'"),
        (3, "2026-13", "is not a month written YYYY-MM"),
    ]
    assert rows(engine, found) == [(date(2026, 4, 1),), (None,)]


def test_an_import_warns_of_history_that_the_next_closing_pays(engine: Engine, tmp_path: Path) -> None:
    pay_from(engine, JANUARY)
    add_sales(engine, add_organization(engine), JANUARY, FEBRUARY)
    settle_and_close(engine, JANUARY, FEBRUARY)
    organizations = [
        story()["organizations"][0] | {"external_ref": name, "payouts_from": month}
        for name, month in (("elsewhere", "2026-03"), ("here", ""), ("late", "2026-02"))
    ]
    movements = [
        story()["money_movements"][1]
        | {"external_ref": f"{name} {month}", "organization_ref": name, "reservation_ref": ""}
        | {"occurred_at": f"{month}-10T10:00:00Z"}
        for name in ("elsewhere", "here", "late")
        for month in ("2026-01", "2026-02", "2026-03")
    ]
    brought = write_folder(tmp_path, {"organizations": organizations, "money_movements": movements})
    [warning] = import_folder(engine, brought, FIRST).warnings
    assert warning.startswith(
        "3 movements of 2 organizations new to the books, such as 'here', in months until 2026-02, which are closed: "
        "the next closing pays them."
    )
    settle_and_close(engine, MARCH)
    # Who has books sells late, as anybody may.
    late = [movements[1] | {"external_ref": "late", "organization_ref": "here"}]
    assert (
        import_folder(engine, write_folder(tmp_path, {"organizations": [], "money_movements": late}), FIRST).warnings
        == ()
    )
