"""Files that cannot be imported: each has its sentence, and nothing is imported."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.refusals import Bad, World, contents, refusal
from tests.support.folders import story, write_folder

Spoil = Callable[[Path], Any]


def rewritten(change: Callable[[bytes], bytes], name: str = "organizations.csv") -> Spoil:
    """Change the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def renamed(old: str, new: str) -> Spoil:
    """Give a file another name."""
    return lambda folder: (folder / old).rename(folder / new)


def cell(kind: str, row: int, **cells: str) -> Spoil:
    """Write other cells into a row."""

    def spoil(folder: Path) -> None:
        rows = story()
        rows[kind][row] |= cells
        write_folder(folder, {kind: rows[kind]})

    return spoil


def added(kind: str, **cells: str) -> Spoil:
    """Add a row that is like the first but for some cells."""

    def spoil(folder: Path) -> None:
        rows = story()
        write_folder(folder, {kind: [*rows[kind], rows[kind][0] | cells]})

    return spoil


def as_gzip(change: Callable[[bytes], bytes]) -> Spoil:
    """Pack the organizations."""

    def spoil(folder: Path) -> None:
        plain = folder / "organizations.csv"
        (folder / "organizations.csv.gz").write_bytes(gzip.compress(change(plain.read_bytes())))
        plain.unlink()

    return spoil


def placed(*names: str) -> Spoil:
    """Put files beside the others."""

    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).touch()

    return spoil


def folder_of_parts(folder: Path) -> None:
    (folder / "events.csv").unlink()
    (folder / "events.csv").mkdir()


def organizations_as_parquet(name: pa.Array, change: Callable[[bytes], bytes] = bytes) -> Spoil:
    """Pack the organizations as Parquet, all with other names, and change its bytes."""

    def spoil(folder: Path) -> None:
        rows = story()["organizations"]
        columns = {key: [row[key] or None for row in rows] for key in rows[0]}
        file = folder / "organizations.parquet"
        pq.write_table(pa.table(columns | {"name": name}), file)
        file.write_bytes(change(file.read_bytes()))
        (folder / "organizations.csv").unlink()

    return spoil


UNSEEN = "which the eye cannot tell; take it out"
FILES: Mapping[str, tuple[Spoil, str]] = {
    # Names.
    "a name in capitals": (
        renamed("money_movements.csv", "money_movements.CSV"),
        "holds money_movements.CSV (did you mean money_movements.csv?), which is no name of a file to import; "
        "rename it, "
        "or take it out of the folder.",
    ),
    "British spelling": (renamed("organizations.csv", "organisations.csv"), "(did you mean organizations.csv?)"),
    "the singular": (renamed("events.csv", "event.csv"), "event.csv (did you mean events.csv?)"),
    "a copy": (
        placed("events.csv.bak"),
        "events.csv.bak beside events.csv, which is no name",
    ),
    "two downloads": (
        placed("events (1).csv", "events (2).csv"),
        "events (1).csv beside events.csv, events (2).csv beside events.csv, which are no names of files to import",
    ),
    "tabs by name": (renamed("events.csv", "events.tsv"), "events.tsv (did you mean events.csv?)"),
    "packed parquet": (renamed("events.csv", "Events.Parquet"), "Events.Parquet (did you mean events.parquet?)"),
    "a name that is not UTF-8": (
        placed("events\udcff.csv"),
        "events\\udcff.csv beside events.csv",
    ),
    "a folder of parts": (
        folder_of_parts,
        "events.csv is no file; put the file itself there.",
    ),
    "twice": (
        placed("events.csv.gz"),
        "events.csv and events.csv.gz; keep one file for events",
    ),
    # What is in them.
    "UTF-16": (
        rewritten(lambda data: data.decode().encode("utf-16")),
        "organizations.csv is no CSV but UTF-16; save it",
    ),
    "UTF-16 without a mark": (rewritten(lambda data: data.decode().encode("utf-16-le")), "is no CSV but UTF-16"),
    "Latin-1": (
        rewritten(lambda data: data.decode().encode("latin-1")),
        "organizations.csv is not UTF-8: line 2 holds the byte 0xd1, which is 'Ñ' in Latin-1 (Windows-1252), "
        "its likely "
        "encoding; save it as UTF-8.",
    ),
    "semicolons": (
        rewritten(lambda data: data.replace(b",", b";")),
        "organizations.csv is separated by semicolons; separate its cells",
    ),
    "quoted and semicolons": (
        rewritten(lambda data: b'"external_ref";"name"\n' + data),
        "organizations.csv is separated by semicolons",
    ),
    "tabs": (rewritten(lambda data: data.replace(b",", b"\t")), "organizations.csv is separated by tabs"),
    "gzip under .csv": (rewritten(gzip.compress), "is no CSV but gzip; name it organizations.csv.gz."),
    "a spreadsheet": (
        rewritten(lambda _: b"PK\x03\x04" + b"\0" * 99),
        "is no CSV but a ZIP archive, as spreadsheets (.xlsx, .ods) are; save",
    ),
    "an old spreadsheet": (
        rewritten(lambda _: bytes.fromhex("d0cf11e0a1b11ae1") + b"\0" * 99),
        "is no CSV but an old spreadsheet (.xls)",
    ),
    "parquet under .csv": (rewritten(lambda _: b"PAR1xxxx"), "is no CSV but Parquet; name it organizations.parquet."),
    "JSON": (rewritten(lambda _: b'[{"external_ref": "o1"}]'), "is no CSV but JSON"),
    "a page": (rewritten(lambda _: b"<!DOCTYPE html>"), "is no CSV but HTML or XML"),
    "CSV under .gz": (
        renamed("organizations.csv", "organizations.csv.gz"),
        "organizations.csv.gz is not a complete gzip file but text that is not packed; name it organizations.csv.",
    ),
    "a spreadsheet packed": (
        as_gzip(lambda _: b"PK\x03\x04zip"),
        "What is packed in organizations.csv.gz is no CSV but a ZIP",
    ),
    "packed twice": (as_gzip(gzip.compress), "What is packed in organizations.csv.gz is no CSV but gzip"),
    "half a gzip": (
        lambda folder: [as_gzip(bytes)(folder), rewritten(lambda data: data[:-9], "organizations.csv.gz")(folder)],
        "organizations.csv.gz is not a complete gzip file",
    ),
    "CSV under .parquet": (
        renamed("organizations.csv", "organizations.parquet"),
        "organizations.parquet is not a readable Parquet file but text; name it organizations.csv.",
    ),
    "a line without an end": (
        as_gzip(lambda data: data + b"x" * (40 << 20)),
        "organizations.csv.gz: the row that starts on line 4 is longer than 1,048,576 bytes",
    ),
    "a row without an end": (
        as_gzip(lambda data: data + b'"\n",' * (1 << 20)),
        "the row that starts on line 4 is longer than 1,048,576 bytes",
    ),
    "a header without an end": (rewritten(lambda _: b"x" * (2 << 20)), "the row that starts on line 1 is longer than"),
    "a cell without an end": (
        organizations_as_parquet(pa.array(["a" * (2 << 20)] * 2)),
        "holds a cell of 2,097,152 bytes in the column 'name'",
    ),
    "Latin-1 in Parquet": (
        organizations_as_parquet(pa.array([b"\xd1"] * 2).view(pa.string())),
        "organizations.parquet holds the byte 0xd1 in the column 'name', which is not UTF-8; write its text in UTF-8.",
    ),
    "a broken page of Parquet": (
        organizations_as_parquet(pa.array(["a"] * 2), lambda data: data[:10] + b"\xff" * 50 + data[60:]),
        "organizations.parquet is not a readable Parquet file (",
    ),
    "old line ends": (
        rewritten(lambda data: data.replace(b"\n", b"\r")),
        "ends its lines with carriage returns alone; save it with line feeds",
    ),
    "empty": (rewritten(lambda _: b""), "organizations.csv is empty; its first line must name the columns."),
    "a column in capitals": (rewritten(lambda data: data.replace(b"name", b"Name")), "unknown column 'Name'"),
    # References.
    "a blank after a reference": (added("organizations", external_ref="o1 "), "begins or ends with a blank"),
    "a blank before a reference": (cell("events", 0, organization_ref=" o1"), "begins or ends with a blank"),
    "a no-break space": (added("organizations", external_ref="o\u00a01"), f"holds U+00A0 (no-break space), {UNSEEN}"),
    "a zero width space": (added("events", external_ref="e\u200b1"), f"holds U+200B (zero width space), {UNSEEN}"),
    "a joiner": (cell("reservations", 0, event_ref="e\u200d1"), f"holds U+200D (zero width joiner), {UNSEEN}"),
    "a byte order mark": (
        cell("money_movements", 0, reverses_ref="\ufeffm1"),
        f"holds U+FEFF (zero width no-break space), {UNSEEN}",
    ),
    "a bell": (added("reservations", external_ref="r\a1"), f"holds U+0007 (control character), {UNSEEN}"),
    "a tab": (cell("money_movements", 1, reservation_ref="r\t1"), f"holds U+0009 (control character), {UNSEEN}"),
    "an accent of its own": (
        added("organizations", external_ref="caf\u0065\u0301"),
        "holds letters and marks that one character stands for; write it in Unicode's normal form NFC",
    ),
    "right to left": (
        added("organizations", external_ref="o\u202e1"),
        f"holds U+202E (right-to-left override), {UNSEEN}",
    ),
    "a return in a name": (
        rewritten(lambda data: data.replace("o2,Teatro Ñ".encode(), b'o2,"Sala Dos\r=1+1"')),
        "holds the control character U+000D; take it out",
    ),
    "a return without quotation marks": (
        cell("organizations", 1, name="Sala Dos\r=1+1"),
        "in the row that starts on line 3 (a carriage return stands outside of quotation marks)",
    ),
    "an escape in a title": (cell("events", 0, title="Car\x1b[31mmen"), "holds the control character U+001B"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_refused_in_a_sentence_and_nothing_is_imported(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    refuse_file(world, tmp_path, capfd, case)


@pytest.mark.parametrize("case", ["the singular", "semicolons", "a joiner"])
def test_a_check_refuses_what_an_import_refuses(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    refuse_file(world, tmp_path, capfd, case, "--check")


def refuse_file(world: World, folder: Path, capfd: pytest.CaptureFixture[str], case: str, *options: str) -> None:
    spoil, sentence = FILES[case]
    spoil(write_folder(folder, story()))
    before = contents(world.engine)
    said = refusal(capfd, Bad(sentence, ("import", str(folder), *options)))
    assert sentence in " ".join(said.split())
    assert [line.startswith("error: ") for line in said.splitlines()][-2:] in ([True], [False, True])
    assert contents(world.engine) == before
