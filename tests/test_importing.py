"""Importing a folder: what is read and how, all or nothing, once however often and by however many."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tests.folders import Story, counts, csv_text, stored, story, write_folder
from tests.rows import add_organization, instant
from ticketflow_orch.database import SessionLimits, connect_engine
from ticketflow_orch.errors import InputError
from ticketflow_orch.importing import Counts, ImportRefused, ImportResult, import_folder
from ticketflow_orch.months import Month

FIRST = Month(2026, 1)
BOOKINGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "hotel_bookings"
EMPTY = {"organization": 0, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 0}
IMPORTED = {"organization": 2, "event": 3, "reservation": 4, "money_movement": 7, "data_import": 1}


def column(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)).scalars())


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
    told = story()
    fee = told["money_movements"][5]
    told["money_movements"] = [fee | {"external_ref": f"x{number}"} for number in range(2_000)]
    import_folder(engine, write_folder(tmp_path, told), FIRST)
    assert column(engine, "SELECT external_ref FROM money_movement ORDER BY id") == [f"x{n}" for n in range(2_000)]


@pytest.mark.parametrize("ending", [".csv.gz", ".parquet"])
def test_every_kind_of_file_says_the_same(engine: Engine, tmp_path: Path, ending: str) -> None:
    written = import_folder(engine, write_folder(tmp_path / "csv", story()), FIRST)
    as_csv = stored(engine)
    again = import_folder(engine, write_folder(tmp_path / "other", story(), ending), FIRST)
    assert (again.import_id, again.existing) == (None, written.new)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM money_movement"))
        for table in ("reservation", "event", "organization", "data_import"):
            connection.execute(text(f"DELETE FROM {table}"))
    import_folder(engine, tmp_path / "other", FIRST)
    assert stored(engine) == as_csv
    assert [len(rows) for rows in as_csv.values()] == [2, 3, 4, 7]


def test_parquet_may_carry_its_own_types(engine: Engine, tmp_path: Path) -> None:
    east = timezone(timedelta(hours=14))
    told = story()
    write_folder(tmp_path, told, ".parquet")
    pq.write_table(
        pa.table(
            {
                **{name: [row[name] or None for row in told["organizations"]] for name in told["organizations"][0]},
                "commission_rate_bps": pa.array([1000, 1000], pa.int16()),
                "joined_on": pa.array([date(2025, 1, 15)] * 2),
                "left_on": pa.array([None, date(2026, 6, 30)]),
                "contact_email": pa.nulls(2),
                "timezone": pa.array(["Europe/Madrid", "Asia/Tokyo"]).dictionary_encode(),
            }
        ),
        tmp_path / "organizations.parquet",
    )
    movements = told["money_movements"]
    occurred_at = [datetime(2026, 5, 2, 0, 5, tzinfo=east)] * len(movements)
    pq.write_table(
        pa.table(
            {
                **{name: [row[name] or None for row in movements] for name in movements[0]},
                "amount": [int(row["amount"]) for row in movements],
                "is_void": [row["is_void"] == "true" for row in movements],
                "occurred_at": pa.array(occurred_at, pa.timestamp("ns", "Pacific/Kiritimati")),
            }
        ),
        tmp_path / "money_movements.parquet",
    )
    import_folder(engine, tmp_path, FIRST)
    assert import_folder(engine, write_folder(tmp_path / "csv", told), FIRST).import_id is None


def test_parquet_rows_are_numbered_from_one(engine: Engine, tmp_path: Path) -> None:
    rows = [story()["organizations"][0] | {"external_ref": f"o{number}"} for number in range(20_000)]
    rows[17_000]["timezone"] = "nowhere"
    write_folder(tmp_path, {"organizations": rows}, ".parquet")
    with pytest.raises(InputError, match=r"organizations\.parquet, line 17001, timezone: 'nowhere'"):
        import_folder(engine, tmp_path, FIRST)


def hostile_engine(url: URL) -> Engine:
    """Sessions that live on the other side of the date line and write days before months."""
    options = "-c timezone=Pacific/Kiritimati -c datestyle=SQL,DMY"
    return create_engine(url.set(drivername="postgresql+psycopg"), connect_args={"options": options})


@pytest.mark.parametrize(
    "written",
    [
        "2026-03-31T22:00:00Z",
        "2026-03-31T22:00Z",
        "2026-03-31 22:00:00+00",
        "2026-04-01T00:00:00+02:00",
        "2026-04-01T00:00:00.000+0200",
        "2026-03-31T08:00:00.000000000-14:00",
        "2026-04-01T12:00:00+14:00",
    ],
)
def test_an_instant_is_the_same_however_it_is_written_and_whatever_the_session_thinks(
    engine: Engine, url: URL, tmp_path: Path, written: str
) -> None:
    hostile = hostile_engine(url)
    told = {"organizations": story()["organizations"][:1], "events": story()["events"][:1]}
    told["organizations"][0]["joined_on"] = "2025-03-04"
    told["events"][0]["starts_at"] = written
    import_folder(hostile, write_folder(tmp_path, told), FIRST)
    hostile.dispose()
    assert column(engine, "SELECT starts_at FROM event") == [datetime(2026, 3, 31, 22, tzinfo=UTC)]
    assert column(engine, "SELECT joined_on FROM organization") == [date(2025, 3, 4)]


def test_a_refusal_reads_the_same_whatever_the_session_thinks(url: URL, tmp_path: Path) -> None:
    hostile = hostile_engine(url)
    told = story()
    told["organizations"][0]["left_on"] = "2025-01-14"
    told["money_movements"][5]["occurred_at"] = "2025-12-31T23:59:59+01:00"
    with pytest.raises(ImportRefused) as caught:
        import_folder(hostile, write_folder(tmp_path, told), FIRST)
    hostile.dispose()
    assert [(problem.value, problem.reason) for problem in caught.value.problems] == [
        ("2025-01-14", "is before joined_on, 2025-01-15"),
        (
            "2025-12-31T22:59:59+00:00",
            "is before the first month that is settled here, which begins at 2025-12-31T23:00:00+00:00",
        ),
    ]


def test_columns_may_come_in_any_order_and_optional_ones_not_at_all(engine: Engine, tmp_path: Path) -> None:
    told = story()
    told["organizations"] = [dict(reversed(row.items())) for row in told["organizations"]]
    told["money_movements"] = [
        {name: cell for name, cell in row.items() if name not in {"is_void", "reason"}}
        for row in told["money_movements"][:4]
    ]
    import_folder(engine, write_folder(tmp_path, told), FIRST)
    assert column(engine, "SELECT name FROM organization") == ["Teatro Ñ"] * 2
    assert column(engine, "SELECT is_void FROM money_movement") == [False] * 4


def test_a_byte_order_mark_is_no_part_of_the_first_column(engine: Engine, tmp_path: Path) -> None:
    write_folder(tmp_path, story())
    for path in tmp_path.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert import_folder(engine, tmp_path, FIRST).new.total == 16


def test_a_missing_file_means_nothing_of_that_kind(engine: Engine, tmp_path: Path) -> None:
    told = story()
    folder = write_folder(tmp_path, {"organizations": told["organizations"]})
    (folder / "README.txt").write_text("none of an import's business")
    assert import_folder(engine, folder, FIRST).new == Counts(2, 0, 0, 0)
    folder = write_folder(tmp_path / "later", told | {"organizations": []})
    assert import_folder(engine, folder, FIRST).new == Counts(0, 3, 4, 7)


def test_a_file_may_hold_no_rows(engine: Engine, tmp_path: Path) -> None:
    write_folder(tmp_path, story())
    (tmp_path / "money_movements.csv").write_text(csv_text(story()["money_movements"]).split("\n")[0])
    assert import_folder(engine, tmp_path, FIRST).new == Counts(2, 3, 4, 0)


def mangled(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    """Change the bytes of the organizations file."""
    return lambda folder: (folder / "organizations.csv").write_bytes(
        change((folder / "organizations.csv").read_bytes())
    )


def replaced(ending: str, content: bytes) -> Callable[[Path], Any]:
    """Put another organizations file in the place of the good one."""
    return lambda folder: (folder / "organizations.csv").rename(folder / f"organizations{ending}").write_bytes(content)


ZIPPED = gzip.compress(csv_text(story()["organizations"]).encode())


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "organizations.csv.gz").touch(), r"organizations\.csv and organizations\.csv\.gz"),
        (mangled(lambda data: b""), r"organizations\.csv is empty"),
        (mangled(lambda data: data.replace(b"locale", b"language")), "unknown column 'language'"),
        (mangled(lambda data: data.replace(b",locale", b"").replace(b",es-ES", b"")), "no column 'locale'"),
        (mangled(lambda data: data.replace(b"locale", b"name")), "column 'name' more than once"),
        (mangled(lambda data: data.decode().encode("latin-1")), r"not UTF-8: line 2 holds the byte 0xd1"),
        (mangled(lambda data: data.replace(b"o2,", b'"o2,')), r"row that starts on line 3 .* quotation mark"),
        (replaced(".csv.gz", b"o1,o2"), "not a complete gzip file"),
        (replaced(".csv.gz", ZIPPED[:-20]), "not a complete gzip file"),
        (replaced(".parquet", b"PAR1"), "not a readable Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(
    engine: Engine, tmp_path: Path, spoil: Callable[[Path], Any], sentence: str
) -> None:
    spoil(write_folder(tmp_path, story()))
    with pytest.raises(InputError, match=sentence) as caught:
        import_folder(engine, tmp_path, FIRST)
    assert "organizations" in str(caught.value)
    assert counts(engine) == EMPTY


@pytest.mark.parametrize(
    ("amounts", "sentence"),
    [
        (pa.array([50.0] * 7), "'amount' as double; write whole numbers as int64"),
        (pa.array([[1]] * 7), "'amount' as list<.*>; write it as text"),
        (pa.array([b"\xff"] * 7), "'amount' as binary; write it as text"),
    ],
)
def test_a_parquet_column_of_a_wrong_type_is_refused_by_name(
    engine: Engine, tmp_path: Path, amounts: pa.Array, sentence: str
) -> None:
    rows = story()["money_movements"]
    write_folder(tmp_path, story() | {"money_movements": []})
    table = pa.table({**{name: [row[name] or None for row in rows] for name in rows[0]}, "amount": amounts})
    pq.write_table(table, tmp_path / "money_movements.parquet")
    with pytest.raises(InputError, match=rf"money_movements\.parquet holds the column {sentence}"):
        import_folder(engine, tmp_path, FIRST)


def test_a_folder_that_is_not_there_or_holds_nothing_to_import_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no folder .*nowhere"):
        import_folder(engine, tmp_path / "nowhere", FIRST)
    (tmp_path / "organization.csv").touch()
    with pytest.raises(InputError, match="holds nothing to import"):
        import_folder(engine, tmp_path, FIRST)


@pytest.mark.every_server
def test_importing_a_folder_again_brings_nothing_and_says_so(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    first = import_folder(engine, folder, FIRST)
    again = import_folder(engine, folder, FIRST)
    assert again == ImportResult(None, first.source, Counts(0, 0, 0, 0), first.new)
    assert str(again) == f"Nothing new in {tmp_path}: all 16 rows are there already."
    assert counts(engine) == IMPORTED


def test_only_what_is_new_is_brought(engine: Engine, tmp_path: Path) -> None:
    told = story()
    import_folder(engine, write_folder(tmp_path, told), FIRST)
    told["reservations"].append(told["reservations"][0] | {"external_ref": "r5"})
    told["money_movements"].append(told["money_movements"][0] | {"external_ref": "m8", "reservation_ref": "r5"})
    result = import_folder(engine, write_folder(tmp_path, told), FIRST)
    assert (result.import_id, result.new, result.existing) == (2, Counts(0, 0, 1, 1), Counts(2, 3, 4, 7))
    assert column(engine, "SELECT external_ref FROM money_movement WHERE import_id = 2") == ["m8"]
    assert column(engine, "SELECT reservations + money_movements FROM data_import WHERE id = 2") == [2]


def test_one_bad_row_in_the_last_file_keeps_everything_out(engine: Engine, tmp_path: Path) -> None:
    told = story()
    told["money_movements"][6]["amount"] = "0"
    with pytest.raises(InputError, match="1 problem"):
        import_folder(engine, write_folder(tmp_path, told), FIRST)
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
        with pytest.raises(InputError, match="another import, held on to what this one needs"):
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
    told = story()
    told["money_movements"] = [
        told["money_movements"][5] | {"external_ref": f"fee {count}", "reason": f"reason {count}"}
        for count in range(number)
    ]
    return told


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


@pytest.mark.skipif(not BOOKINGS.is_dir(), reason="the real bookings are not beside this checkout")
def test_the_real_bookings_come_in_whole(engine: Engine) -> None:
    steps: list[tuple[str, int]] = []
    result = import_folder(engine, BOOKINGS, Month(2013, 1), lambda step, rows: steps.append((step, rows)))
    assert result.new == Counts(410, 16_171, 119_390, 90_277)
    assert column(engine, "SELECT sum(amount) FROM money_movement GROUP BY kind ORDER BY kind") == [
        3_006_262_142, -46_196_018,
    ]  # fmt: skip
    assert ("reading reservations", 50_000) in steps
    assert steps[-1] == ("loading money_movements", 90_277)
