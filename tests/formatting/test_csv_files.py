"""The CSV files that leave the product: every reader gets back what was written, and no spreadsheet runs any of it."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path

import pyarrow.csv
import pytest
from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization
from tests.support.statements import MARCH, close, state
from ticketflow_orch.formatting.csv_files import Figure, Writer, exact, plain
from ticketflow_orch.importing import import_folder
from ticketflow_orch.months import Month

MARK = "\ufeff".encode()
HEADER = ("name", "amount")
NAMES = (
    "Teatro Uno",
    "Sala\rDos",
    "Sala\nTres",
    "Sala\r\nCuatro",
    'Sala "Cinco", la grande; la pequeña\tla otra | y más',
    '"',
    "",
    " ",
    "00123",
    "1,5",
    "null",
    "Café Ñandú ☕ \u2028 \u0001",
    "Sala Dos\r=1+1",
    "Sala Tres;=1+1;x",
    "=1+1",
    "'=1+1",
)


def written(rows: list[tuple[object, ...]], *, for_people: bool = True) -> bytes:
    file = io.StringIO(newline="")
    writer = Writer(file, for_people=for_people)
    writer.writerow(HEADER)
    writer.writerows(rows)
    return file.getvalue().encode()


def table(folder: Path) -> Path:
    """A file with all names, each beside an amount of its own."""
    path = folder / "names.csv"
    path.write_bytes(written([(name, exact(-100 - number, 2)) for number, name in enumerate(NAMES)]))
    return path


AS_READ = [(str(plain(name)), str(exact(-100 - number, 2))) for number, name in enumerate(NAMES)]


def test_python_reads_back_what_was_written(tmp_path: Path) -> None:
    with table(tmp_path).open(encoding="utf-8-sig", newline="") as file:
        assert [tuple(row) for row in csv.reader(file, strict=True)] == [HEADER, *AS_READ]


def test_pyarrow_reads_back_what_was_written(tmp_path: Path) -> None:
    read = pyarrow.csv.read_csv(
        table(tmp_path),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types={"name": "string", "amount": "string"}),
    )
    assert read.column_names == list(HEADER)
    assert list(zip(*(column.to_pylist() for column in read.columns), strict=True)) == AS_READ


def test_duckdb_reads_back_what_was_written_and_takes_amounts_for_numbers(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    read = duckdb.sql(f"SELECT name, amount FROM read_csv('{table(tmp_path)}', nullstr = 'no such text')")
    assert str(read.types[1]) in {"DOUBLE", "DECIMAL(18,2)"}
    assert [(name, f"{amount:.2f}") for name, amount in read.fetchall()] == AS_READ


@pytest.mark.skipif(shutil.which("soffice") is None, reason="no LibreOffice here")
@pytest.mark.parametrize("separator", [",", ";"])
def test_libreoffice_reads_back_what_was_written_and_runs_none_of_it(tmp_path: Path, separator: str) -> None:
    table(tmp_path)
    # Separator, quotation mark, UTF-8, first line; on the way out also: no quoting of all, formulas as text.
    into = f"CSV:{ord(separator)},34,76,1,,0,false,true,false"
    out = "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,true,true"
    subprocess.run(
        [
            "soffice", f"-env:UserInstallation=file://{tmp_path}/profile", "--headless", "--convert-to", out,
            "--infilter=" + into, "--outdir", str(tmp_path / "out"), str(tmp_path / "names.csv"),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with (tmp_path / "out" / "names.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    if separator == ",":
        # A cell has line feeds only there, and what nobody sees is left out.
        assert [float(row[1]) for row in rows[1:]] == [float(amount) for _, amount in AS_READ]
        assert [" ".join(row[0].split()) for row in rows[1:5]] == ["Teatro Uno", "Sala Dos", "Sala Tres", "Sala Cuatro"]
    assert not [cell for row in rows for cell in row if cell == "2"]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        *((f"{start}1", f"'{start}1") for start in "=+-@＝＋－＠"),
        *((f"{start}1", f"'{start}1") for start in "\t\r\n"),
        *((f"a{end}=1", f"a{end}'=1") for end in ("\r", "\n", "\r\n", "\v", "\u2028", ";", ",", "\t", "|")),
        ("a; \"=1+1", "a; \"'=1+1"),
        (' "=1', " \"'=1"),
        ("\t=1", "'\t'=1"),
        ("=1;=2\n-3", "'=1;'=2\n'-3"),
        *((text, text) for text in ("a=1", "a - b", "3-4", "x@y.example", "Rock & Roll", "'=1", "2026-03-10", "")),
    ],
)  # fmt: skip
def test_what_a_spreadsheet_would_run_gets_an_apostrophe_wherever_it_would_begin(text: str, safe: str) -> None:
    assert plain(text) == safe


def test_numbers_are_written_as_they_stand_and_all_cells_are_quoted() -> None:
    rows: list[tuple[object, ...]] = [(-5, exact(-500, 2)), (None, Figure("+1")), ("-5", 0)]
    assert written(rows) == MARK + b'"name","amount"\r\n"-5","-5.00"\r\n"","+1"\r\n"\'-5","0"\r\n'


def test_what_is_for_machines_has_neither_mark_nor_apostrophes() -> None:
    assert written([("=1\r", "-5")], for_people=False) == b'"name","amount"\r\n"=1\r","-5"\r\n'


@pytest.mark.parametrize("name", ["Sala\rDos", "Sala Tres;=1+1;x"])
def test_a_name_with_a_lone_carriage_return_leaves_all_files_of_the_month_readable(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    for other in ("Teatro Uno", name, "Café Ñandú"):
        add_movement(engine, add_organization(engine, name=other), 5_000, "2026-03-10T10:05")
    close(engine, MARCH)
    read = pyarrow.csv.read_csv(
        state(engine, tmp_path).csv, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    assert read["name"].to_pylist() == ["Teatro Uno", plain(name), "Café Ñandú"]
    assert read["captures"].to_pylist() == [50.0] * 3


def test_what_is_written_for_machines_is_what_an_import_takes(engine: Engine, tmp_path: Path) -> None:
    row = {
        "external_ref": "o1", "name": '=Sala; "Dos", -3', "timezone": "Europe/Madrid", "currency": "EUR",
        "commission_rate_bps": "1000", "commission_tax_bps": "2100", "joined_on": "2025-01-01", "left_on": "",
        "contact_email": "", "locale": "es",
    }  # fmt: skip
    folder = tmp_path / "in"
    folder.mkdir()
    with (folder / "organizations.csv").open("w", encoding="utf-8", newline="") as file:
        writer = Writer(file, for_people=False)
        writer.writerows([tuple(row), tuple(row.values())])
    import_folder(engine, folder, Month(2025, 1))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT name FROM organization").scalar_one() == row["name"]
