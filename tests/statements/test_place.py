"""Where statements are put: whole files or none, the same bytes each time, a name of its own for every reference."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from upath import UPath

from tests.support.rows import add_movement, add_organization
from tests.support.sql_statements import execute
from tests.support.statements import FEBRUARY, MARCH, NOW, close, state
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.statements import StatementOptions, issue_statements, queries, tables
from ticketflow_orch.statements.storage import Place, safe_name

ROOT = Path(__file__).parents[2]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def busy_march(engine: Engine) -> None:
    for number in range(12):
        organization = add_organization(engine, external_ref=f"org/{number}", timezone="Asia/Tokyo")
        add_movement(engine, organization, 1_000 + number, "2026-02-10T10:00")
        add_movement(engine, organization, 5_000 + number, "2026-03-10T10:00", currency="KWD")
    close(engine, FEBRUARY)
    close(engine, MARCH)


def test_a_repeat_gives_the_same_bytes_whatever_the_chunks(engine: Engine, tmp_path: Path) -> None:
    busy_march(engine)
    state(engine, tmp_path / "a", chunk_size=5)
    first = files(tmp_path / "a")
    assert len(first) == 2 + 24
    state(engine, tmp_path / "a", chunk_size=1)
    state(engine, tmp_path / "b", chunk_size=1000)
    assert files(tmp_path / "a") == files(tmp_path / "b") == first


def test_object_storage_gets_the_same_bytes_as_a_folder(engine: Engine, tmp_path: Path) -> None:
    busy_march(engine)
    state(engine, tmp_path)
    address = f"memory://statements-{os.getpid()}/books"
    result = issue_statements(engine, MARCH, StatementOptions(Place.at(address)), now=NOW)
    assert result.csv == f"{address}/2026-03/statements.csv"
    stored = UPath(address)
    found = {str(path.relative_to(stored)): path.read_bytes() for path in stored.rglob("*") if path.is_file()}
    assert found == files(tmp_path)


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.writing("2026-03", "statements.csv") as file:
        file.write(b"first")

    def fail_half_way() -> None:
        with place.writing("2026-03", "statements.csv") as file:
            file.write(b"second")
            assert files(tmp_path)["2026-03/statements.csv"] == b"first"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert files(tmp_path) == {"2026-03/statements.csv": b"first"}


KILLED_WHILE_WRITING = """
import sys
from pathlib import Path
from ticketflow_orch.clock import parse_instant
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.months import Month
from ticketflow_orch.statements import StatementOptions, issue_statements
from ticketflow_orch.statements.storage import Place

def progress(statements):
    if statements == 7:
        print("seven", flush=True)
        sys.stdin.read()

engine = connect_engine(sys.argv[1], "pytest killed")
options = StatementOptions(Place(Path(sys.argv[2])))
issue_statements(engine, Month.parse("2026-03"), options, now=parse_instant("2026-06-15T12:00Z"), progress=progress)
"""


def test_a_run_that_is_killed_leaves_no_half_file_and_the_next_one_finishes(
    engine: Engine, url: URL, tmp_path: Path
) -> None:
    busy_march(engine)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_WRITING, url.render_as_string(hide_password=False), str(killed)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"seven\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    process.stdout.close()
    process.stdin.close()
    state(engine, whole)
    found = {name: content for name, content in files(killed).items() if not name.startswith(".drafts/")}
    assert len(found) == 7
    assert found.items() <= files(whole).items()
    drafts = list((killed / ".drafts").iterdir())
    assert len(drafts) == 2
    for draft in drafts:
        os.utime(draft, (0, 0))
    state(engine, killed)
    assert files(killed) == files(whole)


def test_the_size_of_a_month_does_not_show_in_memory(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten times as many organizations, and of ten times as many movements of one, no more is held at a time."""
    monkeypatch.setattr(tables, "_ROWS_A_GROUP", 10)
    monkeypatch.setattr(queries, "_MOVEMENTS_A_FETCH", 200)
    peaks = []
    for month, organizations, movements in ((FEBRUARY, 20, 1200), (MARCH, 200, 12_000)):
        fill(engine, organizations, movements, str(month))
        close(engine, month)
        # Once before, so that templates and the like are there.
        state(engine, tmp_path, month, chunk_size=20)
        gc.collect()
        tracemalloc.start()
        assert state(engine, tmp_path, month, chunk_size=20).statements >= organizations
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks


def fill(engine: Engine, organizations: int, movements: int, month: str) -> None:
    """As many organizations, each with a movement in the month, and one more with many."""
    execute(
        engine,
        """
        INSERT INTO organization (external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
            joined_on)
        SELECT 'bulk-' || CAST(:month AS text) || '-' || n, 'bulk', 'UTC', 'EUR', 1000, 2000, '2020-01-01'
        FROM generate_series(0, CAST(:organizations AS integer)) AS n
        """,
        organizations=organizations,
        month=month,
    )
    execute(
        engine,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT external_ref || '-' || n, id, 'CAPTURE', 'EUR', 100, 1000, 2000,
            CAST(CAST(:month AS text) || '-10 10:00Z' AS timestamptz)
        FROM organization CROSS JOIN LATERAL generate_series(1,
            CASE WHEN external_ref LIKE '%-0' THEN CAST(:movements AS integer) ELSE 1 END) AS n
        WHERE external_ref LIKE 'bulk-' || CAST(:month AS text) || '-%'
        """,
        movements=movements,
        month=month,
    )


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("teatro-real_1.2", "teatro-real_1.2"),
        ("blue/note tokyo", "blue%2Fnote%20tokyo"),
        ("..", "%2E."),
        (".", "%2E"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("50%", "50%25"),
        ("ñ", "%C3%B1"),
        ("c:\\x", "c%3A%5Cx"),
        ("\x00", "%00"),
    ],
)
def test_a_reference_becomes_a_name_that_leads_nowhere_else(reference: str, name: str) -> None:
    assert safe_name(reference) == name


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_no_two_references_share_a_name_and_every_name_fits(first: str, second: str) -> None:
    names = [safe_name(reference.encode("utf-8", "replace").decode()) for reference in (first, second)]
    assert (names[0] == names[1]) == (first == second)
    for name in names:
        assert len(name) <= 120
        assert "/" not in name
        assert not name.startswith(".")


def test_a_very_long_reference_keeps_a_name_of_its_own() -> None:
    names = {safe_name("x" * 500 + end) for end in "abc"}
    assert len(names) == 3
    assert all(len(name) == 120 for name in names)


def test_a_place_that_nothing_here_can_write_to_is_refused_by_name() -> None:
    with pytest.raises(TicketflowError, match="TICKETFLOW_STATEMENTS_PLACE='nowhere://bucket/x' cannot be written to"):
        Place.at("nowhere://bucket/x")
    assert Place.at("file:///srv/x").address("a") == "/srv/x/a"
