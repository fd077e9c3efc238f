"""What decides about money is in the database: taken over once, changed by people, refused where a process differs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from resources import DatabaseResource
from tests.conftest import fresh_database
from tests.support.books import settle_and_close
from tests.support.homes import fresh_home, variables_for
from tests.support.installed import decide
from tests.support.payable import close_owing
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from ticketflow_orch import clock
from ticketflow_orch.cli import doctor_findings, health
from ticketflow_orch.cli.findings import State
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.db.installation import changes, decided, read_installation, require_agreement
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.installation.deciding import adopt, change
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings
from ticketflow_orch.settings import settings as current_settings

JANUARY, FEBRUARY, MARCH = (Month(2026, number) for number in (1, 2, 3))
HEAD_START = timedelta(days=100)


@pytest.fixture
def made(server: EmbeddedServer) -> Iterator[Engine]:
    """An engine on a database that was just made: nothing is decided in it."""
    with fresh_database(server, "template1") as url:
        migrate(url)
        engine = connect_engine(url, "pytest made", connections=5)
        yield engine
        engine.dispose()


def agree(engine: Engine, settings: Settings, *, loaded: bool = False) -> None:
    with engine.connect() as connection:
        require_agreement(connection, settings, loaded=loaded)


def refusal(engine: Engine, name: str, value: str) -> str:
    """Why a change is refused; nothing has changed then."""
    with engine.connect() as connection:
        before = read_installation(connection)
    with pytest.raises(TicketflowError) as caught:
        change(engine, name, value, "ana")
    with engine.connect() as connection:
        assert read_installation(connection) == before
    return str(caught.value)


def ahead() -> Settings:
    """Settings with a clock that is fixed a hundred days ahead, whatever the day is."""
    return Settings(fixed_clock=clock.now() + HEAD_START)


# --- Taken over once


def test_nothing_is_decided_until_the_environment_was_taken_over(made: Engine) -> None:
    with made.connect() as connection, pytest.raises(TicketflowError, match="run `ticketflow migrate`"):
        read_installation(connection)


def test_what_the_environment_says_is_taken_over_once(made: Engine) -> None:
    first = Settings(first_month="2026-01", payouts_from="2026-02", auto_close=False, business_timezone="Asia/Tokyo")
    assert adopt(made, first, "ana")
    assert not adopt(made, Settings(first_month="2026-03"), "eva")
    with made.connect() as connection:
        installed = read_installation(connection)
        assert {one.by for one in changes(connection)} == {"ana"}
        found = decided(connection, Settings(first_month="2026-03"))
    assert (installed.first_month, installed.payouts_from) == (JANUARY, FEBRUARY)
    assert (installed.auto_close, installed.business_timezone, installed.mail_from) == (False, "Asia/Tokyo", None)
    assert (found.first_month, found.payouts_from, found.auto_close) == ("2026-01", "2026-02", False)


def test_of_two_that_take_over_at_once_one_does(made: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(lambda by: adopt(made, Settings(), by), ("ana", "eva")))
    assert sorted(done) == [False, True]
    with made.connect() as connection:
        assert len({one.by for one in changes(connection)}) == 1


def test_nothing_is_taken_over_that_leaves_behind_what_an_older_version_has_begun(made: Engine) -> None:
    add_movement(made, add_organization(made), 100, "2023-01-10T10:00")
    settle(made, Month(2023, 1))
    with pytest.raises(TicketflowError) as caught:
        adopt(made, Settings(first_month="2025-01"), "ana")
    assert str(caught.value) == (
        "TICKETFLOW_FIRST_MONTH is 2025-01 here, and 2023-01 has begun to be settled in this database; set it to "
        "2023-01 or an earlier month, then migrate again."
    )
    assert adopt(made, Settings(first_month="2023-01"), "ana")


def test_nothing_is_taken_over_that_pays_closed_months_unasked(made: Engine) -> None:
    # As an older version left it while payouts were off: due counted as paid.
    close_owing(made, {add_organization(made): 88_000}, JANUARY)
    with pytest.raises(TicketflowError) as caught:
        adopt(made, Settings(first_month="2026-01", payouts_from="2026-01"), "ana")
    assert str(caught.value) == (
        "TICKETFLOW_PAYOUTS_FROM is 2026-01 here, by which closed months pay 880.00 EUR of 1 organization; unset it "
        "and migrate again, then `ticketflow payouts from 2026-01`, which asks whether that is right."
    )
    assert adopt(made, Settings(first_month="2026-01", payouts_from="2026-02"), "ana")


# --- A process that says otherwise


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"first_month": "2014-11"},
            "TICKETFLOW_FIRST_MONTH is 2014-11 here, and the database says 2014-10; set it to 2014-10 and start again, "
            "or change the database with `ticketflow installation set first_month 2014-11`.",
        ),
        ({"business_timezone": "Asia/Tokyo"}, "TICKETFLOW_BUSINESS_TIMEZONE is Asia/Tokyo here"),
        (
            {"payouts_from": "2026-01"},
            "TICKETFLOW_PAYOUTS_FROM is 2026-01 here, and the database says 2014-10; unset it and start again, or "
            "change the database with `ticketflow payouts from 2026-01`.",
        ),
        ({"mail_from": instant("2026-01-01T00:00")}, "2026-01-01T00:00:00+00:00 here, and the database says none;"),
        ({"auto_close": False}, "TICKETFLOW_AUTO_CLOSE is false here, and the database says true; unset it"),
    ],
)
def test_each_variable_that_says_otherwise_is_refused(engine: Engine, said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TicketflowError) as caught:
        agree(engine, Settings(**said))
    assert sentence in str(caught.value)


def test_a_variable_that_is_not_set_agrees_but_for_what_the_code_location_was_loaded_with(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TICKETFLOW_FIRST_MONTH")
    decide(engine, auto_close=False, mail_from=instant("2026-01-01T00:00"))
    agree(engine, Settings())
    with pytest.raises(TicketflowError, match="TICKETFLOW_FIRST_MONTH is not set here, which means 2025-01, and the"):
        agree(engine, Settings(), loaded=True)


def test_no_run_begins_work_where_its_process_says_otherwise(
    engine: Engine, url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = DatabaseResource(url=url.render_as_string(hide_password=False))
    with database.engine("agreeing"):
        pass
    decide(engine, first_month=JANUARY)
    with pytest.raises(TicketflowError, match="TICKETFLOW_FIRST_MONTH is 2014-10 here"), database.engine("disagreeing"):
        pass


# --- Changed by people


def test_a_change_is_kept_with_who_made_it_and_when(engine: Engine) -> None:
    assert change(engine, "first_month", "2014-12", "ana") == ("2014-10", "2014-12")
    assert change(engine, "mail_from", "2026-01-01T00:00:00+01:00", "eva") == ("none", "2025-12-31T23:00:00+00:00")
    assert change(engine, "mail_from", "none", "eva") == ("2025-12-31T23:00:00+00:00", "none")
    with engine.connect() as connection:
        installed, made = read_installation(connection), changes(connection)[-3:]
        database_now = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    assert installed.first_month == Month(2014, 12)
    assert [(one.name, one.by, one.role) for one in made] == [
        ("first_month", "ana", "postgres"),
        ("mail_from", "eva", "postgres"),
        ("mail_from", "eva", "postgres"),
    ]
    assert (made[0].before, made[0].after) == ("2014-10-01", "2014-12-01")
    assert all(timedelta(0) <= database_now - one.at < timedelta(minutes=1) for one in made)


def test_two_changes_at_once_are_both_kept_one_after_the_other(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda zone: change(engine, "business_timezone", zone, "ana"), ("Asia/Tokyo", "Europe/Rome")))
    with engine.connect() as connection:
        first, second = changes(connection)[-2:]
        assert (first.before, first.after) == ("Europe/Madrid", second.before)
        assert second.after == read_installation(connection).business_timezone


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("first_month", "2026-13", "first_month is refused: '2026-13'"),
        ("business_timezone", "Mars/Olympus", "business_timezone is refused: Time zone 'Mars/Olympus' is unknown"),
        ("mail_from", "2026-01-01", "mail_from = '2026-01-01' is refused: Input should have timezone info."),
        ("auto_close", "perhaps", "auto_close = 'perhaps' is refused"),
        ("payouts_from", "2026-01", "`ticketflow payouts from YYYY-MM` changes it"),
        ("routes", "x", "`ticketflow installation accept-routes` changes them"),
        ("id", "x", "it never changes"),
        ("rehearsal", "true", "it is said when a database is made"),
        ("workers", "2", "workers cannot be set: name one of business_timezone, first_month, mail_from, auto_close."),
    ],
)
def test_a_value_is_judged_by_the_rules_of_its_variable(engine: Engine, name: str, value: str, sentence: str) -> None:
    assert sentence in refusal(engine, name, value)


def test_the_first_month_never_passes_a_month_that_has_begun(engine: Engine) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-02-10T10:00", external_ref="old")
    assert refusal(engine, "first_month", "2026-03") == (
        "first_month cannot be 2026-03: nobody would settle the movements before it, such as 'old'."
    )
    settle(engine, FEBRUARY)
    assert refusal(engine, "first_month", "2026-03") == (
        "first_month cannot be 2026-03: 2026-02 has begun to be settled, and the months after it would wait for it for "
        "ever."
    )
    assert change(engine, "first_month", "2026-02", "ana") == ("2014-10", "2026-02")


def test_a_movement_lies_before_the_first_month_in_its_own_zone(engine: Engine) -> None:
    tokyo, madrid = (add_organization(engine, timezone=zone) for zone in ("Asia/Tokyo", "Europe/Madrid"))
    # March has begun in Tokyo at that instant.
    add_movement(engine, tokyo, 100, "2026-02-28T16:00")
    assert change(engine, "first_month", "2026-03", "ana")[1] == "2026-03"
    change(engine, "first_month", "2026-01", "ana")
    add_movement(engine, madrid, 100, "2026-02-28T16:00")
    assert "nobody would settle" in refusal(engine, "first_month", "2026-03")


def test_the_first_month_goes_back_as_long_as_no_month_is_closed(engine: Engine) -> None:
    decide(engine, first_month=JANUARY)
    add_movement(engine, add_organization(engine), 100, "2026-01-10T10:00")
    settle(engine, JANUARY)
    assert change(engine, "first_month", "2025-11", "ana")[1] == "2025-11"
    settle_and_close(engine, JANUARY)
    assert "2026-01 is closed, and nothing before it will be" in refusal(engine, "first_month", "2025-10")


def test_a_first_month_that_came_too_late_goes_back_to_the_first_that_is_closed(engine: Engine) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY)
    # As a migration without TICKETFLOW_FIRST_MONTH once left it.
    decide(engine, first_month=MARCH)
    assert "2026-01 is closed" in refusal(engine, "first_month", "2025-12")
    assert change(engine, "first_month", "2026-01", "ana") == ("2026-03", "2026-01")


# --- Time that runs ahead


def test_a_clock_that_is_fixed_ahead_works_on_nothing_but_rehearsals(engine: Engine, made: Engine) -> None:
    with pytest.raises(TicketflowError, match=r"TICKETFLOW_FIXED_CLOCK is .*, ahead of the database's clock, and this"):
        agree(engine, ahead())
    adopt(made, Settings(), "ana", rehearsal=True)
    agree(made, ahead())


def test_a_clock_that_stands_still_is_named_where_business_is_for_real(
    server: EmbeddedServer, engine: Engine, scratch: Path
) -> None:
    still = "business time stands still at 2026-01-15T10:00:00+00:00 here, and what comes due later is not done"
    variables = variables_for(engine.url, server.url("unused"))
    with fresh_home(scratch, TICKETFLOW_FIXED_CLOCK="2026-01-15T10:00:00Z", **variables):
        assert f"clock: {still}; unset TICKETFLOW_FIXED_CLOCK." in health.examine(current_settings())
        [found] = [finding for finding in doctor_findings.examine(current_settings()) if finding.subject == "clock"]
    assert (found.state, found.detail) == (State.STOPPED, still)


def test_only_a_rehearsal_settles_a_month_before_the_database_has_seen_its_end(engine: Engine, made: Engine) -> None:
    adopt(made, Settings(), "ana", rehearsal=True)
    then = clock.now() + HEAD_START
    month = Month.of_instant(then, "UTC").previous()
    for database in (engine, made):
        add_movement(database, add_organization(database), 100, month.window("UTC").starts_at.isoformat())
    with pytest.raises(TicketflowError, match=f"{month} is not over"):
        settle(engine, month, now=then)
    assert settle(made, month, now=then).rows_new == 1


def test_a_database_is_made_for_rehearsals_or_never_is(engine: Engine, made: Engine) -> None:
    with pytest.raises(TicketflowError, match="is not made for rehearsals, and becomes none"):
        adopt(engine, Settings(), "ana", rehearsal=True)
    add_organization(made)
    with pytest.raises(TicketflowError, match="is not made for rehearsals, and becomes none"):
        adopt(made, Settings(), "ana", rehearsal=True)
    for database in (engine, made):
        with pytest.raises(DBAPIError, match="is said when it is made"):
            execute(database, "UPDATE installation SET rehearsal = true")


def test_asking_for_a_rehearsal_again_changes_nothing(made: Engine) -> None:
    assert adopt(made, Settings(), "ana", rehearsal=True)
    assert not adopt(made, Settings(), "ana", rehearsal=True)
    with transaction(made) as connection:
        assert read_installation(connection).rehearsal
    current_settings.cache_clear()
