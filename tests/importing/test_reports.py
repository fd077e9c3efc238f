"""What an import tells beside its first hundred problems: how many of which kind, all of them, and what is odd."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.folders import Story, column, counts, story, write_folder
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import Counts, ImportRefused, ImportResult, ProblemCount, import_folder
from ticketflow_orch.months import Month

FIRST = Month(2026, 1)
EMPTY = {"organization": 0, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 0}
HEADER = '"file","line","column","value","reason"\n'
M_REFUND, M_CAPTURE, M_FEE = 0, 1, 5


def many_bad(number: int) -> Story:
    """Bad cells, bad rows and repeated references, so many of each."""
    given = story()
    fee = given["money_movements"][M_FEE]
    for count in range(number):
        given["money_movements"] += [
            fee | {"external_ref": f"cell-{count}", "amount": "?"},
            fee | {"external_ref": f"row-{count}", "currency": "XXX"},
            fee | {"external_ref": f"late-{count}", "occurred_at": f"2025-12-{count % 28 + 1:02}T00:00:00Z"},
            fee,
        ]
    given["events"][2]["status"] = "=?"
    return given


def refused(engine: Engine, folder: Path, given: Story, problems: Path | None = None) -> ImportRefused:
    with pytest.raises(ImportRefused) as caught:
        import_folder(engine, write_folder(folder, given), FIRST, problems=problems)
    return caught.value


def test_problems_are_counted_by_file_column_and_reason(engine: Engine, tmp_path: Path) -> None:
    error = refused(engine, tmp_path, many_bad(120))
    assert error.count == 481
    movements = "money_movements.csv"
    assert sorted(error.summary, key=lambda kind: (kind.file, kind.column)) == [
        ProblemCount("events.csv", "status", "is none of DRAFT, OPEN, CLOSED, CANCELLED", 1),
        ProblemCount(
            movements, "amount", "is not a whole number from -9223372036854775807 to 9223372036854775807", 120
        ),
        ProblemCount(movements, "currency", "is no known currency code", 120),
        ProblemCount(movements, "external_ref", "stands on an earlier line already", 120),
        ProblemCount(movements, "occurred_at", "is before the first month that is settled here", 120),
    ]
    assert error.summary[-1].count == 1


def test_all_problems_are_written_in_order_to_the_file_that_is_asked_for(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "problems.csv"
    error = refused(engine, tmp_path / "in", many_bad(700), file)
    with file.open(encoding="utf-8-sig", newline="") as opened:
        header, *rows = csv.reader(opened)
    assert header == ["file", "line", "column", "value", "reason"]
    assert len(rows) == error.count == 2801
    assert rows[0] == ["events.csv", "5", "status", "'=?", "is none of DRAFT, OPEN, CLOSED, CANCELLED"]
    assert [row[1] for row in rows[1:5]] == ["9", "10", "11", "12"]
    lines = [int(row[1]) for row in rows[1:]]
    assert lines == sorted(lines)
    assert [tuple(row[1:3]) for row in rows[:100]] == [
        (str(problem.line), problem.column) for problem in error.problems
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"in", "problems.csv"}


def test_the_file_of_problems_is_empty_but_for_its_header_when_all_is_well(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "problems.csv"
    file.write_text("of the last attempt")
    import_folder(engine, write_folder(tmp_path / "in", story()), FIRST, problems=file)
    assert file.read_text("utf-8-sig") == HEADER


def test_a_file_of_problems_that_cannot_be_written_is_refused_before_anything_is_read(
    engine: Engine, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, story())
    with pytest.raises(TicketflowError, match=r"cannot be written \(No such file or directory\); name another one"):
        import_folder(engine, folder, FIRST, problems=tmp_path / "nowhere" / "problems.csv")
    with pytest.raises(TicketflowError, match="is a folder; name a file"):
        import_folder(engine, folder, FIRST, problems=tmp_path)
    assert counts(engine) == EMPTY


def test_problems_take_the_place_of_no_file_of_the_import_and_of_no_device(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", story())
    events = folder / "events.csv"
    before = events.read_bytes()
    for file in (events, tmp_path / "in" / ".." / "in" / "events.csv"):
        with pytest.raises(TicketflowError, match="is a file of the import; name another one for the problems"):
            import_folder(engine, folder, FIRST, problems=file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TicketflowError, match="is no ordinary file; name one"):
        import_folder(engine, folder, FIRST, problems=tmp_path / "pipe")
    assert (events.read_bytes(), counts(engine)) == (before, EMPTY)
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "problems.csv")
    import_folder(engine, folder, FIRST, problems=link)
    assert link.is_symlink()
    assert (tmp_path / "problems.csv").read_text("utf-8-sig") == HEADER


@pytest.mark.every_server
def test_a_check_does_all_and_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    steps: list[str] = []
    checked = import_folder(engine, folder, FIRST, lambda step, _: steps.append(step), check=True)
    assert checked == ImportResult(None, str(tmp_path), Counts(2, 3, 4, 7), Counts(0, 0, 0, 0))
    assert str(checked) == (
        f"Nothing is wrong with {tmp_path}, and nothing was imported: it would bring 2 organizations, 3 events, "
        "4 reservations and 7 money movements."
    )
    assert "loading money_movements" in steps, "the way of an import, to its end"
    assert counts(engine) == EMPTY
    assert import_folder(engine, folder, FIRST).new == checked.new
    assert str(import_folder(engine, folder, FIRST, check=True)).startswith("Nothing new in")


def test_files_without_rows_and_files_that_are_not_looked_at_are_said(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    movements = folder / "money_movements.csv"
    movements.write_text(movements.read_text().split("\n")[0])
    for name in (".DS_Store", "README.txt", "truth.csv.gz"):
        (folder / name).touch()
    result = import_folder(engine, folder, FIRST)
    assert result.new == Counts(2, 3, 4, 0)
    assert result.notes == (
        "money_movements.csv has a header line and no rows.",
        "Not looked at: .DS_Store, README.txt, truth.csv.gz.",
    )


def test_a_folder_of_headers_is_said_to_hold_no_rows(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"organizations": story()["organizations"]})
    (folder / "organizations.csv").write_text((folder / "organizations.csv").read_text().split("\n")[0])
    assert str(import_folder(engine, folder, FIRST)) == f"Nothing new in {tmp_path}: there are no rows."


def test_instants_days_and_months_far_from_now_are_let_in_and_said(engine: Engine, tmp_path: Path) -> None:
    given = story()
    for organization in given["organizations"]:
        organization["payouts_from"] = ""
    given["organizations"][0] |= {"joined_on": "1925-01-15", "payouts_from": "2062-07"}
    given["organizations"][1] |= {"left_on": "2206-06-30"}
    given["events"][1] |= {"starts_at": "1926-06-01T20:00:00Z"}
    given["events"][2] |= {"starts_at": "2206-06-01T20:00:00Z", "ends_at": "2206-06-01T22:00:00Z"}
    given["money_movements"][M_FEE]["occurred_at"] = "2206-05-01T10:05:00Z"
    result = import_folder(engine, write_folder(tmp_path, given), FIRST)
    assert result.notes == (
        "organizations.csv: joined_on is far from now in 1 row (1925-01-15), the first on line 2.",
        "organizations.csv: left_on is far from now in 1 row (2206-06-30), the first on line 3.",
        "organizations.csv: payouts_from is far from now in 1 row (2062-07-01), the first on line 2.",
        "events.csv: starts_at is far from now in 2 rows (1926-06-01 to 2206-06-01), the first on line 3.",
        "events.csv: ends_at is far from now in 1 row (2206-06-01), the first on line 5.",
        "money_movements.csv: occurred_at is far from now in 1 row (2206-05-01), the first on line 7.",
    )
    assert import_folder(engine, tmp_path, FIRST).notes == (), "they are there already"


def test_references_that_differ_in_blanks_alone_are_each_named(engine: Engine, tmp_path: Path) -> None:
    given = story()
    organization, capture = given["organizations"][0], given["money_movements"][M_CAPTURE] | {"reservation_ref": ""}
    error = refused(
        engine,
        tmp_path,
        {
            "organizations": [organization, organization | {"external_ref": "o1 "}],
            "money_movements": [
                capture,
                capture | {"external_ref": "m1 "},
                capture | {"external_ref": "m2", "organization_ref": "o1 "},
            ],
        },
    )
    assert [(problem.file, problem.line, problem.column, problem.value) for problem in error.problems] == [
        ("organizations.csv", 3, "external_ref", "o1 "),
        ("money_movements.csv", 3, "external_ref", "m1 "),
        ("money_movements.csv", 4, "organization_ref", "o1 "),
    ]
    assert {problem.reason for problem in error.problems} == {"begins or ends with a blank"}
    assert counts(engine) == EMPTY


def test_names_keep_joiners_directions_and_line_breaks(engine: Engine, tmp_path: Path) -> None:
    given = story()
    name = "شرکت\u200cها \u2067אולם\u2069\ttwo\nlines\r\nthree"
    given["organizations"][0]["name"] = name
    import_folder(engine, write_folder(tmp_path, given), FIRST)
    assert column(engine, "SELECT name FROM organization WHERE external_ref = 'o1'") == [name]


def test_a_few_kilobytes_that_unpack_to_gigabytes_take_no_memory(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"organizations": story()["organizations"]})
    packed = folder / "organizations.csv.gz"
    with packed.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        file.write((folder / "organizations.csv").read_bytes())
        for _ in range(300):
            file.write(b"x" * (1 << 20))
    (folder / "organizations.csv").unlink()
    program = f"""
import pathlib, resource
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing.files import read_files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for batch in read_files({{"organizations": pathlib.Path({str(packed)!r})}}):
        list(batch.rows)
except TicketflowError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    sentence, kilobytes = run.stdout.splitlines()
    assert "the row that starts on line 4 is longer than 1,048,576 bytes" in sentence
    assert int(kilobytes) < 32 * 1024
