"""The files of an import folder: what is read, how it is read, and what is refused by name."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL

from tests.support.folders import column, counts, csv_text, stored, story, write_folder
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import Counts, ImportRefused, import_folder, undo_import
from ticketflow_orch.months import Month

FIRST = Month(2026, 1)
EMPTY = {"organization": 0, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 0}


@pytest.mark.parametrize("ending", [".csv.gz", ".parquet"])
def test_every_kind_of_file_says_the_same(engine: Engine, tmp_path: Path, ending: str) -> None:
    written = import_folder(engine, write_folder(tmp_path / "csv", story()), FIRST)
    as_csv = stored(engine)
    again = import_folder(engine, write_folder(tmp_path / "other", story(), ending), FIRST)
    assert (again.import_id, again.existing) == (None, written.new)
    undo_import(engine, 1)
    import_folder(engine, tmp_path / "other", FIRST)
    assert stored(engine) == as_csv
    assert [len(rows) for rows in as_csv.values()] == [2, 3, 4, 7]


def test_parquet_may_carry_its_own_types(engine: Engine, tmp_path: Path) -> None:
    east = timezone(timedelta(hours=14))
    given = story()
    write_folder(tmp_path, given, ".parquet")
    pq.write_table(
        pa.table(
            {
                **{name: [row[name] or None for row in given["organizations"]] for name in given["organizations"][0]},
                "commission_rate_bps": pa.array([1000, 1000], pa.int16()),
                "joined_on": pa.array([date(2025, 1, 15)] * 2),
                "left_on": pa.array([None, date(2026, 6, 30)]),
                "contact_email": pa.nulls(2),
                "timezone": pa.array(["Europe/Madrid", "Asia/Tokyo"]).dictionary_encode(),
            }
        ),
        tmp_path / "organizations.parquet",
    )
    movements = given["money_movements"]
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
    assert import_folder(engine, write_folder(tmp_path / "csv", given), FIRST).import_id is None


def test_parquet_rows_are_numbered_from_one(engine: Engine, tmp_path: Path) -> None:
    rows = [story()["organizations"][0] | {"external_ref": f"o{number}"} for number in range(20_000)]
    rows[17_000]["timezone"] = "nowhere"
    write_folder(tmp_path, {"organizations": rows}, ".parquet")
    with pytest.raises(TicketflowError, match=r"organizations\.parquet, line 17001, timezone: 'nowhere'"):
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
    given = {"organizations": story()["organizations"][:1], "events": story()["events"][:1]}
    given["organizations"][0]["joined_on"] = "2025-03-04"
    given["events"][0]["starts_at"] = written
    import_folder(hostile, write_folder(tmp_path, given), FIRST)
    hostile.dispose()
    assert column(engine, "SELECT starts_at FROM event") == [datetime(2026, 3, 31, 22, tzinfo=UTC)]
    assert column(engine, "SELECT joined_on FROM organization") == [date(2025, 3, 4)]


def test_a_refusal_reads_the_same_whatever_the_session_thinks(url: URL, tmp_path: Path) -> None:
    hostile = hostile_engine(url)
    given = story()
    given["organizations"][0]["left_on"] = "2025-01-14"
    given["money_movements"][5]["occurred_at"] = "2025-12-31T23:59:59+01:00"
    with pytest.raises(ImportRefused) as caught:
        import_folder(hostile, write_folder(tmp_path, given), FIRST)
    hostile.dispose()
    assert [(problem.value, problem.reason) for problem in caught.value.problems] == [
        ("2025-01-14", "is before joined_on, 2025-01-15"),
        (
            "2025-12-31T22:59:59+00:00",
            "is before the first month that is settled here, which begins at 2025-12-31T23:00:00+00:00",
        ),
    ]


def test_columns_may_come_in_any_order_and_optional_ones_not_at_all(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["organizations"] = [dict(reversed(row.items())) for row in given["organizations"]]
    given["money_movements"] = [
        {name: cell for name, cell in row.items() if name not in {"is_void", "reason"}}
        for row in given["money_movements"][:4]
    ]
    import_folder(engine, write_folder(tmp_path, given), FIRST)
    assert column(engine, "SELECT name FROM organization") == ["Teatro Ñ"] * 2
    assert column(engine, "SELECT is_void FROM money_movement") == [False] * 4


def test_a_byte_order_mark_is_no_part_of_the_first_column(engine: Engine, tmp_path: Path) -> None:
    write_folder(tmp_path, story())
    for path in tmp_path.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert import_folder(engine, tmp_path, FIRST).new.total == 16


def test_a_folder_whose_name_is_not_utf_8_is_read_and_named_with_escapes(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / os.fsdecode(b"caf\xe9"), story())
    assert import_folder(engine, folder, FIRST).source == f"{tmp_path}/caf\\udce9"


def test_a_missing_file_means_nothing_of_that_kind(engine: Engine, tmp_path: Path) -> None:
    given = story()
    folder = write_folder(tmp_path, {"organizations": given["organizations"]})
    (folder / "README.txt").write_text("none of an import's business")
    assert import_folder(engine, folder, FIRST).new == Counts(2, 0, 0, 0)
    folder = write_folder(tmp_path / "later", given | {"organizations": []})
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
    with pytest.raises(TicketflowError, match=sentence) as caught:
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
    with pytest.raises(TicketflowError, match=rf"money_movements\.parquet holds the column {sentence}"):
        import_folder(engine, tmp_path, FIRST)


def test_a_folder_that_is_not_there_or_holds_nothing_to_import_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TicketflowError, match=r"There is no folder .*nowhere"):
        import_folder(engine, tmp_path / "nowhere", FIRST)
    (tmp_path / "organization.csv").touch()
    with pytest.raises(TicketflowError, match="holds nothing to import"):
        import_folder(engine, tmp_path, FIRST)
