"""Settings that make no sense, and variables that nobody reads: each has its sentence, and nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cli.refusals import Bad, World, bad, refusal, require_refused, variables
from ticketflow_orch import cli
from ticketflow_orch.settings import unknown_variables

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
    bad("TICKETFLOW_MAX_SHARDS='33' is refused", "status", MAX_SHARDS="33"),
    bad("TICKETFLOW_SHARD_ABOVE='0' is refused", "status", SHARD_ABOVE="0"),
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


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_what_makes_no_sense_is_refused_in_a_sentence_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: Bad
) -> None:
    monkeypatch.chdir(world.home)
    require_refused(world, capfd, case)


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
