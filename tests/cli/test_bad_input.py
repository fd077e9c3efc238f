"""What people get wrong, kind by kind: each case has its sentence and its exit code, and nothing is written."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from resources import DatabaseResource
from tests.conftest import TEMPLATE, fresh_database, run_sql
from tests.support.folders import story, write_folder
from tests.support.homes import MIGRATING, fresh_home, variables_for
from tests.support.rows import add_movement, add_organization
from ticketflow_orch import cli
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import settings, unknown_variables

ROLES = Path(__file__).resolve().parents[2] / "deploy" / "roles.sql"
UNKNOWN = "00000000-0000-4000-8000-000000000000"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class Bad:
    """A command line that is refused: `said` is its sentence, or the telling part of it."""

    said: str
    arguments: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    code: int = 2


def bad(said: str, *arguments: str, code: int = 2, **environment: str | None) -> Any:
    """A case, called after its command line and its variables."""
    name = " ".join([*(f"{key}={value}" for key, value in environment.items()), *arguments])
    variables = {f"TICKETFLOW_{key}": value for key, value in environment.items()}
    return pytest.param(Bad(said, arguments, variables, code), id=name.encode("ascii", "backslashreplace").decode())


ARGUMENTS = [
    bad("'2026-13' is not a month; write it as YYYY-MM, for example 2026-03.", "settle", "2026-13"),
    bad("'2026-3' is not a month", "settle", "2026-3"),
    bad("'2026-03 ' is not a month", "settle", "2026-03 "),
    bad("'２０２６-03' is not a month", "settle", "２０２６-03"),
    bad("Name one month, or --from and --to", "settle"),
    bad("Name one month, or --from and --to", "settle", "--from", "2026-01"),
    bad(
        "There is no month from 2026-03 to 2026-01; turn the two around.",
        "settle",
        "--from",
        "2026-03",
        "--to",
        "2026-01",
    ),
    bad("2014-09 is none of the months that are over, 2014-10 to ", "settle", "2014-09"),
    bad("2199-01 is none of the months that are over, 2014-10 to ", "settle", "2199-01"),
    bad("2199-01 is not over in UTC before 2199-02-01 01:00", "settle", "2199-01", "--dry-run"),
    bad("2014-09 is before 2014-10, the first month", "settle", "2014-09", "--dry-run"),
    bad(
        "2026-02 is not over in UTC before 2026-03-01 01:00 (Europe/Madrid), and it is 2026-02-15",
        "settle",
        "2026-02",
        FIXED_CLOCK="2026-02-15T00:00:00Z",
    ),
    bad("is for the dry run of one month", "settle", "2026-01", "--file", "x.csv"),
    bad(
        "cannot be written (No such file or directory); name another one.",
        "settle",
        "2026-01",
        "--dry-run",
        "--file",
        "/nowhere/x.csv",
    ),
    bad("'soon' is not a month", "close", "soon"),
    bad("Name one month, or --from and --to", "close"),
    bad("2014-09 is none of the months that are over", "close", "2014-09"),
    bad("9998-12 is none of the months that are over", "close", "9998-12"),
    bad("2026-02 is not over in UTC before", "close", "2026-02", FIXED_CLOCK="2026-02-15T00:00:00Z"),
    bad("'9999-01' is not a month", "books", "--to", "9999-01"),
    bad("'March' is not a month", "late", "--month", "March"),
    bad("Invalid value for '--limit'", "late", "--limit", "0"),
    bad("Invalid value for '--limit'", "late", "--limit", "1" + "0" * 30),
    bad("'2026' is not a month", "explain", "hall", "2026"),
    bad("There is no organization 'nobody'", "explain", "nobody", "2026-01"),
    bad("The argument 'o\\udcff' is not UTF-8", "explain", "o\udcff", "2026-01"),
    bad("'1969-12' is not a month", "statement", "hall", "1969-12"),
    bad("2026-01 is OPEN", "statement", "hall", "2026-01"),
    bad("'2026-00' is not a month", "audit", "--month", "2026-00"),
    bad("There is no organization 'nobody'", "audit", "--organization", "nobody"),
    bad("Name one of --reservation, --event and --organization", "effects"),
    bad("There is no organization 'nobody'", "park", "nobody", "--reason", "x"),
    bad("reason", "park", "hall"),
    bad("'nobody'", "unpark", "nobody"),
    bad("'2026-1' is not a month", "payouts", "list", "--month", "2026-1"),
    bad("payout", "payouts", "show", "p1"),
    bad("payout", "payouts", "hold", UNKNOWN, "--reason", "x"),
    bad("Name one payout by its reference, or a month", "payouts", "release"),
    bad("'EURO' is no currency", "payouts", "release", "--month", "2026-01", "--currency", "EURO"),
    bad("'EURO' is no currency", "payouts", "list", "--currency", "EURO"),
    bad("Invalid value for '--limit'", "anomalies", "list", "--limit", "9" * 30),
    bad("Say with --reason why payout p1 is rejected", "payouts", "resolve", "p1", "--as", "rejected"),
    bad("Invalid value for '--as'", "payouts", "resolve", "p1", "--as", "lost"),
    bad("'e1'", "outbox", "show", "e1"),
    bad("event", "outbox", "hold", UNKNOWN),
    bad("'yesterday' is not an instant", "outbox", "redrive", "--since", "yesterday"),
    bad("out of reach; use an instant from 1970 to 9998", "outbox", "redrive", "--since", "0001-01-01T00:00:00+14:00"),
    bad("--as sent is unknown; say delivered, again, dead or dropped.", "outbox", "resolve", UNKNOWN, "--as", "sent"),
    bad("Name one of --type and --destination.", "outbox", "stop", "--reason", "x"),
    bad("There is no destination 'moon'", "outbox", "stop", "--reason", "x", "--destination", "moon"),
    bad("Invalid value for '--budget'", "outbox", "deliver", "--budget", "inf"),
    bad("Invalid value for '--budget'", "outbox", "deliver", "--budget", "nan"),
    bad("claim", "claims", "release", "close_events", "2026-01-01"),
    bad("Say how 'r1' is resolved: --confirm or --expire.", "reservations", "resolve", "r1"),
    bad("Name --textfile or --serve, not both.", "metrics", "--textfile", "x", "--serve", "9000"),
    bad("Name either a folder to import or an import to take back", "import"),
    bad("There is no import 7; the table data_import lists those there are.", "import", "--undo", "7"),
    bad("Invalid value for '--undo'", "import", "--undo", "9" * 30),
    bad("are about a folder, not about --undo", "import", "--undo", "7", "--check"),
    bad("There is no folder nowhere; name one that holds organizations.csv", "import", "nowhere"),
    bad("names a server of your own; only the embedded one is started and stopped here.", "db", "start"),
    bad("names a server of your own; only the embedded one is started and stopped here.", "db", "stop"),
    bad("cannot be written (No such file or directory)", "metrics", "--textfile", "/nowhere/x.prom"),
    bad("The argument '' says nothing, most likely for a variable of the shell that is not set", "import", ""),
    bad("The argument '' says nothing", "payouts", "release", ""),
    bad("The argument '' says nothing", "payouts", "release", "--month", ""),
    bad("The argument '' says nothing", "payouts", "from", ""),
    bad("The argument ' ' says nothing", "settle", " "),
    bad("The argument '--month=' says nothing", "late", "--month="),
    bad("/ is a folder; name a file there.", "settle", "2026-01", "--dry-run", "--file", "/"),
    bad("a-pipe is no ordinary file; name one", "settle", "2026-01", "--dry-run", "--file", "a-pipe"),
    bad("a-pipe is no ordinary file; name one", "metrics", "--textfile", "a-pipe"),
    bad("Invalid value for '--months'", "demo", "--months", "0"),
    bad("Invalid value for '--port'", "ui", "--port", "99999"),
    bad("No such command", "setle", "2026-01"),
]

ENVIRONMENT = [
    bad(
        "TICKETFLOW_FIXED_CLOCK='9999-12-31T00:00:00Z' is refused: write an instant from 1970 to 9998.",
        "status",
        FIXED_CLOCK="9999-12-31T00:00:00Z",
    ),
    bad("TICKETFLOW_FIXED_CLOCK='9999-12-31' is refused", "status", FIXED_CLOCK="9999-12-31"),
    bad(
        "TICKETFLOW_FIXED_CLOCK='0001-01-01T00:00:00+14:00' is refused",
        "settle",
        "2026-01",
        FIXED_CLOCK="0001-01-01T00:00:00+14:00",
    ),
    bad("TICKETFLOW_MAIL_FROM='9999-12-31T23:59:59Z' is refused", "status", MAIL_FROM="9999-12-31T23:59:59Z"),
    bad("TICKETFLOW_MAIL_FROM='20260101' is refused: write an instant in ISO 8601", "status", MAIL_FROM="20260101"),
    bad("TICKETFLOW_FIXED_CLOCK='20260101' is refused", "settle", "2026-01", FIXED_CLOCK="20260101"),
    bad("mail_from = '20260101' is refused", "installation", "set", "mail_from", "20260101"),
    bad("TICKETFLOW_HOME is not UTF-8; write it in that encoding.", "status", HOME="h\udcff"),
    bad(
        "TICKETFLOW_DATABASE_URL has more than one @; write one that belongs to the password or role as %40.",
        "status",
        DATABASE_URL="postgresql://u:p@ss@127.0.0.1:1/d",
    ),
    bad("TICKETFLOW_CHUNK_PAUSE='inf' is refused", "status", CHUNK_PAUSE="inf"),
    bad("TICKETFLOW_CHUNK_PAUSE='nan' is refused", "status", CHUNK_PAUSE="nan"),
    bad("TICKETFLOW_WRITER_WAIT='inf' is refused", "status", WRITER_WAIT="inf"),
    bad("TICKETFLOW_WRITER_WAIT='nan' is refused", "status", WRITER_WAIT="nan"),
    bad("TICKETFLOW_WORKERS='1e9' is refused", "status", WORKERS="1e9"),
    bad("TICKETFLOW_CHUNK_SIZE='99999999999' is refused", "status", CHUNK_SIZE="99999999999"),
    bad("TICKETFLOW_PARKED_LIMIT='-1' is refused", "status", PARKED_LIMIT="-1"),
    bad("TICKETFLOW_PAYOUT_REVIEW_FACTOR='nan' is refused", "status", PAYOUT_REVIEW_FACTOR="nan"),
    bad("TICKETFLOW_PAYMENT_GRACE='inf' is refused: write a length of time", "status", PAYMENT_GRACE="inf"),
    bad(
        "TICKETFLOW_CLOSING_GRACE='P99999999D' is refused: write a length of time of at most P36525D",
        "status",
        CLOSING_GRACE="P99999999D",
    ),
    bad("Time zone 'Mars/Olympus' is unknown to tzdata", "status", BUSINESS_TIMEZONE="Mars/Olympus"),
    bad("'2026-1' is not a month", "status", FIRST_MONTH="2026-1"),
    bad("'never' is not a month", "status", PAYOUTS_FROM="never"),
    bad("TICKETFLOW_AUTO_CLOSE='maybe' is refused", "status", AUTO_CLOSE="maybe"),
    bad("TICKETFLOW_DATABASE_URL is not a database URL", "status", DATABASE_URL="tickets"),
    bad("TICKETFLOW_DATABASE_URL must name a Postgres database", "status", DATABASE_URL="mysql://u@h/d"),
    bad(
        "TICKETFLOW_DATABASE_URL is set but TICKETFLOW_DAGSTER_DATABASE_URL is not", "status", DAGSTER_DATABASE_URL=None
    ),
    bad("Not a directory; set TICKETFLOW_HOME to a folder.", "settle", "2026-01", HOME="a-file"),
    bad("Statements cannot be put into", "statement", "hall", "2026-01", STATEMENTS_PLACE="a-file"),
    bad("Statements cannot be put into", "statement", "hall", "2026-01", STATEMENTS_PLACE="a-file/below"),
    bad("cannot be read (No such file or directory); name a TOML file.", "outbox", "deliver", DELIVERY="nowhere.toml"),
    bad("cannot be read (Is a directory); name a TOML file.", "outbox", "deliver", DELIVERY="."),
]


@dataclass(frozen=True, slots=True)
class World:
    """A home on a database of its own, with an organization and a movement in it."""

    server: EmbeddedServer
    engine: Engine
    url: URL
    home: Path
    definitions: dg.Definitions


@pytest.fixture(scope="module")
def world(server: EmbeddedServer, scratch: Path) -> Iterator[World]:
    """One database for all that is refused, since none of it may leave a trace."""
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(server))
        storage = server.url(f"{url.database}_dagster")
        stack.callback(run_sql, server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")
        first = {"TICKETFLOW_FIRST_MONTH": os.environ["TICKETFLOW_FIRST_MONTH"]}
        home = stack.enter_context(fresh_home(scratch, **variables_for(url, storage), **first))
        engine = connect_engine(url, "pytest bad input")
        stack.callback(engine.dispose)
        add_movement(engine, add_organization(engine, external_ref="hall", timezone="UTC"), 100, "2026-01-10T10:00")
        with running(settings(), asked=MIGRATING):
            home.mkdir(exist_ok=True)
        (home / "a-file").touch()
        os.mkfifo(home / "a-pipe")
        database = DatabaseResource(url=url.render_as_string(hide_password=False))
        yield World(server, engine, url, home, build_definitions({"database": database}))


def contents(engine: Engine) -> dict[str, int]:
    """How many rows each table has."""
    with engine.connect() as connection:
        tables = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        ).scalars()
        counts = [f"SELECT '{table}' AS name, count(*) FROM {table}" for table in tables]
        return dict(map(tuple, connection.execute(text(" UNION ALL ".join(counts))))) if counts else {}


@contextmanager
def variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """The environment with some variables changed, or gone where they are None."""
    with patch.dict(os.environ):
        for name, value in changes.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        settings.cache_clear()
        try:
            yield
        finally:
            settings.cache_clear()


def refusal(capfd: pytest.CaptureFixture[str], case: Bad) -> str:
    """What the console script says on stderr, after it has ended with the code of the case."""
    with variables(case.environment), patch.object(sys, "argv", ["ticketflow", *case.arguments]):
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
    said = capfd.readouterr().err
    assert end.value.code == case.code, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("case", ARGUMENTS + ENVIRONMENT)
def test_what_makes_no_sense_is_refused_in_a_sentence_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: Bad
) -> None:
    monkeypatch.chdir(world.home)
    before = contents(world.engine)
    said = refusal(capfd, case)
    # Usage errors come in a box, which breaks its lines.
    assert case.said in " ".join(said.replace("│", " ").split())
    assert said.startswith("Usage") or said.count("\n") == 1
    assert contents(world.engine) == before


def test_a_folder_that_is_gone_or_has_no_name_is_refused_in_a_sentence(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    at_home = {"TICKETFLOW_HOME": None}
    for name, said in (("gone", "The folder in which this was started is gone"), ("caf\udce9", "is not UTF-8; set")):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        if name == "gone":
            folder.rmdir()
        assert said in refusal(capfd, Bad(said, ["status"], at_home))


FAR = [
    ("books", "--from", "1970-01", "--to", "9998-12"),
    ("late", "--month", "9998-12"),
    ("explain", "hall", "1970-01"),
    ("explain", "hall", "9998-12"),
    ("statement", "hall", "9998-12"),
    ("payouts", "list", "--month", "1970-01"),
    ("audit", "--month", "9998-12"),
]


@pytest.mark.parametrize("arguments", FAR, ids=" ".join)
def test_a_month_at_the_edge_of_the_calendar_is_answered_or_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    before = contents(world.engine)
    monkeypatch.setattr(sys, "argv", ["ticketflow", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in {0, 2}, capfd.readouterr()
    assert contents(world.engine) == before


# Files

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
        told = story()
        told[kind][row] |= cells
        write_folder(folder, {kind: told[kind]})

    return spoil


def added(kind: str, **cells: str) -> Spoil:
    """Add a row that is like the first but for some cells."""

    def spoil(folder: Path) -> None:
        told = story()
        write_folder(folder, {kind: [*told[kind], told[kind][0] | cells]})

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


# Partition keys and run configuration, as launched from the pages.

FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
KEY = "dagster/partition"
SETTLEMENT, BOOKS, PAYOUTS = "monthly_settlement_job", "close_books_job", "payouts_job"
STATEMENTS, EXPLANATION, EVENTS = "statements_job", "explain_job", "close_events_job"


def config(**values: object) -> dict[str, object]:
    """The launchpad's configuration of a settlement."""
    return {"ops": {"monthly_settlement": {"config": values}}}


def question(**values: object) -> dict[str, object]:
    """The launchpad's configuration of an explanation."""
    return {"ops": {"explanation": {"config": values}}}


MONTH = {KEY: "2026-01"}
RUNS: Mapping[str, tuple[str, dict[str, str], dict[str, object], str]] = {
    "no month to settle": (
        SETTLEMENT,
        {},
        {},
        "This run names no month; choose one where it is launched, such as 2026-03.",
    ),
    "no month to close": (BOOKS, {}, {}, "This run names no month"),
    "no month to pay": (PAYOUTS, {}, {}, "This run names no month"),
    "no month to state": (STATEMENTS, {}, {}, "This run names no month"),
    "several months in a run": (
        SETTLEMENT,
        {FIRST: "2026-01", LAST: "2026-02"},
        {},
        "A run takes one month, and this one names 2; launch them as",
    ),
    "a range turned around": (
        BOOKS,
        {FIRST: "2026-03", LAST: "2026-01"},
        {},
        "There is no month from 2026-03 to 2026-01; turn the two around.",
    ),
    "before the first month": (
        SETTLEMENT,
        {KEY: "2014-09"},
        {},
        "2014-09 is before the first month, 2014-10; choose a",
    ),
    "closed before the first month": (
        BOOKS,
        {KEY: "2014-09"},
        {},
        "2014-09 is before the first month, 2014-10; choose",
    ),
    "a range from before the first month": (
        BOOKS,
        {FIRST: "2014-09", LAST: "2026-01"},
        {},
        "2014-09 is before the first month, 2014-10; choose a later one.",
    ),
    "a month that is not over": (SETTLEMENT, {KEY: "2199-01"}, {}, "2199-01 is not over in UTC before 2199-02-01"),
    "a month that is not closed": (PAYOUTS, MONTH, {}, "2026-01 was never settled, and only closed months are paid"),
    "no workers": (SETTLEMENT, MONTH, config(workers=0), "workers: 0 is refused; write a number from 1 to 32."),
    "too many workers": (SETTLEMENT, MONTH, config(workers=33), "workers: 33 is refused; write a number from 1 to 32."),
    "no chunk": (
        SETTLEMENT,
        MONTH,
        config(chunk_size=0),
        "chunk_size: 0 is refused; write a number from 1 to 10,000,000.",
    ),
    "a pause without an end": (
        SETTLEMENT,
        MONTH,
        config(chunk_pause=float("inf")),
        "chunk_pause: inf is refused; write a number from 0 to 3,600.",
    ),
    "a pause that is no number": (SETTLEMENT, MONTH, config(chunk_pause=float("nan")), "chunk_pause: nan is refused"),
    "a wait before now": (SETTLEMENT, MONTH, config(writer_wait=-1.0), "writer_wait: -1.0 is refused; write a number"),
    "a file without a dry run": (
        SETTLEMENT,
        MONTH,
        config(dry_run_file="x.csv"),
        "dry_run_file: 'x.csv' is for a dry run",
    ),
    "a dry run into nowhere": (
        SETTLEMENT,
        MONTH,
        config(dry_run=True, dry_run_file="/nowhere/x.csv"),
        "The file /nowhere/x.csv cannot be written",
    ),
    "a dry run of the future": (
        SETTLEMENT,
        {KEY: "2199-01"},
        config(dry_run=True),
        "2199-01 is not over in UTC before",
    ),
    "no organization to explain": (
        EXPLANATION,
        {},
        question(organization="", month="2026-01"),
        "There is no organization ''",
    ),
    "no month to explain": (EXPLANATION, {}, question(organization="hall", month="March"), "'March' is not a month"),
    "a window that is no instant": (EVENTS, {"ticketflow/scheduled_for": "today"}, {}, "'today' is not an instant"),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_that_makes_no_sense_fails_with_a_sentence_of_ours(world: World, case: str) -> None:
    job, tags, run_config, sentence = RUNS[case]
    before = contents(world.engine)
    with dg.DagsterInstance.ephemeral() as instance:
        result = world.definitions.resolve_job_def(job).execute_in_process(
            instance=instance, tags=tags, run_config=QUIET | run_config, raise_on_error=False
        )
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None, failure.error
    assert sentence in str(failure.user_failure_data.description)
    assert contents(world.engine) == before


# States of a database.


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and a database on it that may be spoilt."""

    server: EmbeddedServer
    url: URL

    def sql(self, *statements: str) -> None:
        """Change the database."""
        for statement in statements:
            run_sql(self.url, statement)

    def administer(self, statement: str) -> None:
        """Change something about the database from outside."""
        run_sql(self.server.url(), statement.format(self.url.database))

    def as_role(self, role: str) -> URL:
        """Sessions that carry a role."""
        return self.url.update_query_dict({"options": f"-c role={role}"})


@dataclass(frozen=True, slots=True)
class State:
    """`spoil` makes the state and returns the URL by which the command finds it; `template` is what it begins from."""

    spoil: Callable[[Place], URL | None]
    arguments: tuple[str, ...]
    said: str
    code: int = 2
    template: str = TEMPLATE


def with_sql(*statements: str) -> Callable[[Place], None]:
    """A state that statements make."""
    return lambda place: place.sql(*statements)


def read_only(place: Place) -> None:
    place.administer("ALTER DATABASE {} SET default_transaction_read_only = on")


def unwelcoming(place: Place) -> None:
    place.administer("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false")


def role(place: Place, name: str) -> URL:
    place.sql(f"DO $$ BEGIN CREATE ROLE {name} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    return place.as_role(name)


def role_of_runs(place: Place) -> URL:
    place.sql(ROLES.read_text("utf-8"))
    return place.as_role("ticketflow_run")


def wrong_password(place: Place) -> URL:
    place.sql(
        "DO $$ BEGIN CREATE ROLE pytest_secret LOGIN PASSWORD 'right'; EXCEPTION WHEN duplicate_object THEN "
        "NULL; END $$"
    )
    rules = place.server.data / "pg_hba.conf"
    line = "local all pytest_secret scram-sha-256\n"
    if line not in rules.read_text():
        rules.write_text(line + rules.read_text())
        run_sql(place.server.url(), "SELECT pg_reload_conf()")
    return place.url.set(username="pytest_secret", password="wr0ng")


# What a server without room says when a table is made.
FULL = (
    "CREATE FUNCTION full_disk() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
    "'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    "CREATE EVENT TRIGGER full_disk ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION full_disk()",
)
BEHIND = "The database's schema is behind this code ("
STATES: Mapping[str, State] = {
    "empty": State(lambda _: None, ("status",), f"{BEHIND}empty < ", template="template0"),
    "behind": State(
        with_sql("UPDATE alembic_version SET version_num = '0001'"),
        ("status",),
        f"{BEHIND}0001 < ",
    ),
    "ahead": State(
        with_sql("UPDATE alembic_version SET version_num = '9999'"),
        ("status",),
        "The database's schema is ahead of this code (revision 9999 is unknown here); upgrade ticketflow-orch",
    ),
    "ahead of a migration": State(
        with_sql("UPDATE alembic_version SET version_num = '9999'"),
        ("migrate",),
        "is ahead of this code",
    ),
    "no version": State(with_sql("DELETE FROM alembic_version"), ("status",), f"{BEHIND}empty < "),
    "read-only, importing": State(
        read_only,
        ("import", "{folder}"),
        "The database takes no writes (cannot execute CREATE TABLE in a read-only transaction)",
    ),
    "read-only, deciding": State(
        read_only,
        ("park", "hall", "--reason", "x"),
        "in a read-only transaction); name the primary server, or have it made",
    ),
    "read-only, migrating": State(
        read_only,
        ("migrate",),
        "The database takes no writes (cannot execute",
        template="template0",
    ),
    "a missing table": State(
        with_sql("DROP TABLE parked_organization CASCADE"),
        ("status",),
        'The database lacks a part of its schema (relation "parked_organization" does not exist); restore it',
    ),
    "a missing column": State(
        with_sql("ALTER TABLE settlement_pass DROP COLUMN cutoff_at CASCADE"),
        ("status",),
        "lacks a part of its schema (column",
    ),
    "the role of runs imports": State(
        role_of_runs,
        ("import", "{folder}"),
        "The database's role may not do this (permission denied for table data_import); run the command as a "
        "role that may",
    ),
    "no right to read": State(
        lambda place: role(place, "pytest_nobody"),
        ("status",),
        "The database's role may not do this (permission denied",
    ),
    "no right to create": State(
        lambda place: role(place, "pytest_nobody"),
        ("migrate",),
        "The database's role may not do this (permission denied for schema public)",
        template="template0",
    ),
    "no room": State(
        with_sql(*FULL),
        ("migrate",),
        "The database's disk is full (could not extend file: No space left on device); make room there, then "
        "run the command",
        code=1,
        template="template0",
    ),
    "a wrong password": State(
        wrong_password,
        ("status",),
        'password authentication failed for user "pytest_secret"); start that server or correct',
    ),
    "no such role": State(
        lambda place: place.url.set(username="pytest_unknown"),
        ("status",),
        'role "pytest_unknown" does not exist',
    ),
    "closed to sessions": State(unwelcoming, ("status",), "is not currently accepting connections"),
    "no server": State(
        lambda place: URL.create("postgresql", "u", "s3cr3t", "127.0.0.1", 1, "x"),
        ("status",),
        "No connection to database 'x' as 'u' on 127.0.0.1:1 (Connection refused",
    ),
    "no server at an IPv6 address": State(
        lambda place: URL.create("postgresql", "u", "s3cr3t", "::1", 1, "x"),
        ("migrate",),
        "No connection to database 'x' as 'u'",
    ),
    "no database, and no right to make it": State(
        lambda place: role(place, "pytest_nobody").set(database="not_there"),
        ("migrate",),
        "'not_there' as 'postgres'",
        template="template0",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_database_in_no_state_for_it_is_refused_in_a_sentence_and_left_as_it_is(
    server: EmbeddedServer, scratch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    state = STATES[name]
    write_folder(tmp_path, story())
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(server, state.template))
        if state.template == TEMPLATE:
            engine = connect_engine(url, "pytest bad input", connections=1)
            add_organization(engine, external_ref="hall")
            engine.dispose()
        given = state.spoil(Place(server, url)) or url
        storage = server.url(f"{url.database}_dagster")
        stack.callback(run_sql, server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")
        stack.enter_context(fresh_home(scratch, **variables_for(given, storage)))
        arguments = [argument.format(folder=tmp_path) for argument in state.arguments]
        before = rows_in(server, url)
        said = refusal(capfd, Bad(state.said, arguments, code=state.code))
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert state.said in said
        assert "s3cr3t" not in said
        assert "wr0ng" not in said
        assert rows_in(server, url) == before


def rows_in(server: EmbeddedServer, url: URL) -> dict[str, int]:
    """The contents of a database, read as its owner."""
    engine = connect_engine(server.url(), "pytest bad input", connections=1)
    with engine.connect() as connection:
        query = text("SELECT datallowconn FROM pg_database WHERE datname = :name")
        is_open = connection.execute(query, {"name": url.database}).scalar_one()
    engine.dispose()
    run_sql(server.url(), f"ALTER DATABASE {url.database} WITH ALLOW_CONNECTIONS true")
    engine = connect_engine(url, "pytest bad input", connections=1)
    try:
        return contents(engine)
    finally:
        engine.dispose()
        run_sql(server.url(), f"ALTER DATABASE {url.database} WITH ALLOW_CONNECTIONS {is_open}")


# Variables that nobody reads.


@pytest.mark.parametrize("arguments", [("status",), ("db", "url"), ("payouts", "list"), ("doctor",)], ids=" ".join)
def test_a_variable_that_nobody_reads_is_the_first_that_a_command_says(
    world: World, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with (
        variables({"TICKETFLOW_PAYOUTS_FORM": "2026-01", "ticketflow_workers": "3"}),
        patch.object(sys, "argv", ["ticketflow", *arguments]),
        pytest.raises(SystemExit),
    ):
        cli.main()
    assert capfd.readouterr().err.splitlines() == [
        "warning: TICKETFLOW_PAYOUTS_FORM is set, and no setting has this name; did you mean TICKETFLOW_PAYOUTS_FROM?"
    ]


def test_a_variable_that_the_configuration_of_delivery_names_is_read(world: World, tmp_path: Path) -> None:
    file = tmp_path / "delivery.toml"
    file.write_text('secrets = ["TICKETFLOW_WEBHOOK_SECRET"]')
    given = {"TICKETFLOW_DELIVERY": str(file), "TICKETFLOW_WEBHOOK_SECRET": "x", "TICKETFLOW_SECRET": "y"}
    assert unknown_variables(given) == (
        "TICKETFLOW_SECRET is set, and no setting has this name; `ticketflow doctor` lists those there are.",
    )


def test_the_doctor_says_which_variable_nobody_reads(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        variables({"TICKETFLOW_WORKER": "3"}),
        patch.object(sys, "argv", ["ticketflow", "doctor"]),
        pytest.raises(SystemExit),
    ):
        cli.main()
    [line] = [line for line in capfd.readouterr().out.splitlines() if "TICKETFLOW_WORKER " in line]
    assert "stopped" in line
    assert "did you mean TICKETFLOW_WORKERS?" in line
