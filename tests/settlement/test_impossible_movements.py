"""Reversals that cannot have happened are refused when they are imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.anomalous import reversals
from tests.support.folders import write_folder
from ticketflow_orch.importing import ImportRefused, import_folder
from ticketflow_orch.months import Month

IMPOSSIBLE = {
    "a void of a void": ({"is_void": "true", "amount": "5000", "reverses_ref": "void4"}, "reverses_ref"),
    "a void of what another voids": ({"is_void": "true", "amount": "-5000", "reverses_ref": "sold4"}, "reverses_ref"),
    "a void of another amount": ({"is_void": "true", "amount": "-4999", "reverses_ref": "sold5"}, "amount"),
    "another organization's": ({"kind": "REFUND", "amount": "-1", "reverses_ref": "sold5"}, "reverses_ref"),
    "another currency": ({"kind": "REFUND", "amount": "-1", "reverses_ref": "sold4", "currency": "USD"}, "currency"),
}


@pytest.mark.parametrize(("cells", "column"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_have_happened_is_refused_at_import_in_one_sentence(
    engine: Engine, tmp_path: Path, cells: dict[str, str], column: str
) -> None:
    told = reversals()
    organization = "h5" if cells["reverses_ref"] == "sold5" and "is_void" in cells else "h4"
    told["money_movements"].append(
        told["money_movements"][0] | {"external_ref": "impossible", "organization_ref": organization} | cells
    )
    with pytest.raises(ImportRefused) as refused:
        import_folder(engine, write_folder(tmp_path, told), Month(2026, 1))
    [problem] = [problem for problem in refused.value.problems if problem.column == column]
    line = len(told["money_movements"]) + 1
    assert (problem.file, problem.line, problem.column, problem.value) == (
        "money_movements.csv", line, column, cells[column],
    )  # fmt: skip
