"""Importing a folder: all or nothing, and once, however often and by however many."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tests.support.folders import Story, column, counts, story, write_folder
from tests.support.rows import add_organization, instant
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import Counts, ImportResult, import_folder
from ticketflow_orch.months import Month

FIRST = Month(2026, 1)
EMPTY = {"organization": 0, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 0}
IMPORTED = {"organization": 2, "event": 3, "reservation": 4, "money_movement": 7, "data_import": 1}


@pytest.mark.every_server
def test_a_folder_is_imported_as_it_is_written(engine: Engine, tmp_path: Path) -> None:
    result = import_folder(engine, write_folder(tmp_path, story()), FIRST)
    assert result == ImportResult(1, str(tmp_path), Counts(2, 3, 4, 7), Counts(0, 0, 0, 0))
    assert counts(engine) == IMPORTED
    assert column(engine, "SELECT title FROM event ORDER BY external_ref")[1] == 'Noh, "old"\nand new'
    assert column(engine, "SELECT starts_at FROM event WHERE external_ref = 'e1'") == [instant("2026-06-01T18:00")]
    assert column(engine, "SELECT amount FROM money_movement ORDER BY external_ref") == [
        5000, -5000, -5000, 5000, -5000, -100, 250,
    ]  # fmt: skip
    reversals = "SELECT m.external_ref || ':' || t.external_ref FROM money_movement m JOIN money_movement t ON"
    assert column(engine, f"{reversals} t.id = m.reverses_id ORDER BY 1") == ["m2:m1", "m3:m1", "m4:m3", "m5:m1"]


def test_what_the_format_does_not_tell_is_filled_in(engine: Engine, tmp_path: Path) -> None:
    import_folder(engine, write_folder(tmp_path, story()), FIRST)
    assert column(engine, "SELECT closed_at FROM event WHERE status = 'CLOSED'") == [instant("2026-06-01T21:00")]
    assert column(engine, "SELECT expired_at FROM reservation WHERE status = 'EXPIRED'") == [
        instant("2026-05-01T10:15")
    ]
    for table in ("organization", "event", "reservation", "money_movement"):
        assert set(column(engine, f"SELECT import_id FROM {table}")) == {1}


def test_ids_follow_the_order_of_the_file(engine: Engine, tmp_path: Path) -> None:
    given = story()
    fee = given["money_movements"][5]
    given["money_movements"] = [fee | {"external_ref": f"x{number}"} for number in range(2_000)]
    import_folder(engine, write_folder(tmp_path, given), FIRST)
    assert column(engine, "SELECT external_ref FROM money_movement ORDER BY id") == [f"x{n}" for n in range(2_000)]


@pytest.mark.every_server
def test_importing_a_folder_again_brings_nothing_and_says_so(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    first = import_folder(engine, folder, FIRST)
    again = import_folder(engine, folder, FIRST)
    assert again == ImportResult(None, first.source, Counts(0, 0, 0, 0), first.new)
    assert str(again) == f"Nothing new in {tmp_path}: all 16 rows are there already."
    assert counts(engine) == IMPORTED


def test_only_what_is_new_is_brought(engine: Engine, tmp_path: Path) -> None:
    given = story()
    import_folder(engine, write_folder(tmp_path, given), FIRST)
    given["reservations"].append(given["reservations"][0] | {"external_ref": "r5"})
    given["money_movements"].append(given["money_movements"][0] | {"external_ref": "m8", "reservation_ref": "r5"})
    result = import_folder(engine, write_folder(tmp_path, given), FIRST)
    assert (result.import_id, result.new, result.existing) == (2, Counts(0, 0, 1, 1), Counts(2, 3, 4, 7))
    assert column(engine, "SELECT external_ref FROM money_movement WHERE import_id = 2") == ["m8"]
    assert column(engine, "SELECT reservations + money_movements FROM data_import WHERE id = 2") == [2]


def test_one_bad_row_in_the_last_file_keeps_everything_out(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["money_movements"][6]["amount"] = "0"
    with pytest.raises(TicketflowError, match="1 problem"):
        import_folder(engine, write_folder(tmp_path, given), FIRST)
    assert counts(engine) == EMPTY


@pytest.mark.every_server
def test_two_imports_of_one_folder_at_once_bring_it_once(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: import_folder(engine, folder, FIRST), range(4)))
    assert sorted(result.new.total for result in results) == [0, 0, 0, 16]
    assert counts(engine) == IMPORTED


def test_an_import_that_waits_too_long_for_another_gives_up_with_a_sentence(
    engine: Engine, url: URL, tmp_path: Path
) -> None:
    impatient = connect_engine(url, "impatient", limits=SessionLimits(lock_timeout=0.1))
    with engine.begin() as other:
        other.execute(text("LOCK TABLE data_import IN SHARE ROW EXCLUSIVE MODE"))
        with pytest.raises(TicketflowError, match="another import, held on to what this one needs"):
            import_folder(impatient, write_folder(tmp_path, story()), FIRST)
    impatient.dispose()
    assert counts(engine) == EMPTY


def test_an_import_under_way_is_in_nobody_elses_way(engine: Engine, tmp_path: Path) -> None:
    written = []

    def work_beside(step: str, _rows: int) -> None:
        if step.startswith("loading"):
            written.append(add_organization(engine))

    import_folder(engine, write_folder(tmp_path, story()), FIRST, work_beside)
    assert len(written) == 4


def test_an_event_that_takes_an_active_reservation_stays_open_until_it_is_in(
    engine: Engine, url: URL, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, story() | {"reservations": [], "money_movements": []})
    import_folder(engine, folder, FIRST)
    write_folder(tmp_path, story())
    impatient = connect_engine(url, "impatient", limits=SessionLimits(lock_timeout=0.1))

    def close(step: str, _rows: int) -> None:
        if step == "checking reservations":
            with pytest.raises(OperationalError, match="lock timeout"), impatient.begin() as connection:
                connection.execute(text("UPDATE event SET status = 'CLOSED', closed_at = now() WHERE status = 'OPEN'"))

    assert import_folder(engine, folder, FIRST, close).new == Counts(0, 0, 4, 7)
    impatient.dispose()


@pytest.mark.parametrize("moment", ["reading money_movements", "checking events", "loading money_movements"])
def test_an_import_killed_half_way_leaves_nothing_and_can_be_repeated(
    engine: Engine, url: URL, tmp_path: Path, moment: str
) -> None:
    folder = write_folder(tmp_path, story())
    victim = connect_engine(url, f"import killed {moment}")

    def kill(step: str, _rows: int) -> None:
        if step == moment:
            column(
                engine,
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                f" WHERE application_name = 'import killed {moment}'",
            )

    with pytest.raises(Exception, match=r"terminating connection|server closed|connection is closed") as caught:
        import_folder(victim, folder, FIRST, kill)
    assert isinstance(getattr(caught.value, "orig", caught.value), psycopg.OperationalError)
    victim.dispose()
    assert counts(engine) == EMPTY
    import_folder(engine, folder, FIRST)
    assert counts(engine) == IMPORTED


def many_fees(number: int) -> Story:
    given = story()
    given["money_movements"] = [
        given["money_movements"][5] | {"external_ref": f"fee {count}", "reason": f"reason {count}"}
        for count in range(number)
    ]
    return given


def peak_memory(engine: Engine, folder: Path) -> int:
    tracemalloc.start()
    try:
        import_folder(engine, folder, FIRST)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", [".csv.gz", ".parquet"])
def test_memory_does_not_grow_with_the_number_of_rows(engine: Engine, tmp_path: Path, ending: str) -> None:
    write_folder(tmp_path / "few", many_fees(5_000), ending)
    write_folder(tmp_path / "many", many_fees(20_000), ending)
    import_folder(engine, tmp_path / "few", FIRST)
    few, many = peak_memory(engine, tmp_path / "few"), peak_memory(engine, tmp_path / "many")
    # 15,000 rows more, each of them at least a kilobyte as Python objects.
    assert many < few + 500_000


def test_the_number_of_statements_does_not_grow_with_the_number_of_rows(engine: Engine, tmp_path: Path) -> None:
    executed: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: executed.append(arguments[2]))
    numbers = []
    for rows in (1, 10, 5_000):
        executed.clear()
        import_folder(engine, write_folder(tmp_path, many_fees(rows)), FIRST)
        numbers.append(len(executed))
    # The first brings organizations, events and reservations too; the others bring more and more movements.
    assert numbers[0] > numbers[1] == numbers[2]


def test_after_an_import_the_next_reader_finds_statistics_and_all_visible_pages(engine: Engine, tmp_path: Path) -> None:
    import_folder(engine, write_folder(tmp_path, many_fees(2_000)), FIRST)
    query = "SELECT reltuples::int FROM pg_class WHERE relname = 'money_movement' AND relallvisible = relpages"
    assert column(engine, query) == [2_000]
    query = "SELECT n_distinct FROM pg_stats WHERE tablename = 'money_movement' AND attname = 'external_ref'"
    assert column(engine, query) == [-1]


def test_a_statement_timeout_does_not_end_a_long_import(url: URL, tmp_path: Path) -> None:
    hasty = connect_engine(url, "hasty", limits=SessionLimits(statement_timeout=0.05))
    import_folder(hasty, write_folder(tmp_path, many_fees(10_000)), FIRST)
    with pytest.raises(Exception, match="statement timeout"):
        column(hasty, "SELECT pg_sleep(1)")
    hasty.dispose()
