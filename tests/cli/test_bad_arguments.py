"""Arguments that make no sense: each has its sentence and its exit code, and nothing is written."""

from __future__ import annotations

import sys

import pytest

from tests.cli.refusals import Bad, World, bad, contents, require_refused
from ticketflow_orch import cli

UNKNOWN = "00000000-0000-4000-8000-000000000000"

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
    bad("2026-01 was never settled", "statement", "hall", "2026-01"),
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


@pytest.mark.parametrize("case", ARGUMENTS)
def test_what_makes_no_sense_is_refused_in_a_sentence_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: Bad
) -> None:
    monkeypatch.chdir(world.home)
    require_refused(world, capfd, case)


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
