"""Whatever a crash, a slip or a late entry leaves behind: the schedules alone go on from there, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine, text

from tests.settlement.test_settlement import NOW, settle
from tests.support.books import (
    APRIL,
    FEBRUARY,
    FIRST,
    JANUARY,
    add_opening_balance,
    balances,
    breaches,
    close,
    settle_and_close,
    state_of,
)
from tests.support.folders import write_folder
from tests.support.installed import decide
from tests.support.payable import pay_from, rows
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.sql_statements import execute
from tests.support.unattended import Schedules, doomed
from ticketflow_orch.closing import IncompleteClosingError
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import freeze
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import import_folder, undo_import
from ticketflow_orch.importing.staging import Progress
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.snapshot import read_situation
from ticketflow_orch.months import Month
from ticketflow_orch.reports.board import read_board
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement import IncompleteSettlementError, checks, passes
from ticketflow_orch.settlement.passes import ParkedLimitError
from ticketflow_orch.settlement.worker import Drain
from ticketflow_orch.statements.storage import Place

DECEMBER = Month(2025, 12)
MOVEMENT = {
    "reservation_ref": "", "kind": "CAPTURE", "currency": "EUR", "amount": "100000", "commission_rate_bps": "1000",
    "commission_tax_bps": "2000", "reverses_ref": "", "is_void": "", "reason": "",
}  # fmt: skip
OWED = 88_000  # of a capture of 100,000


@pytest.fixture
def unattended(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Lets nothing but the schedules act, on the days from `first` on."""
    with dg.DagsterInstance.ephemeral() as instance:
        schedules = Schedules(engine, instance, Place.at(str(tmp_path / "statements")), print)

        def run(first: str, days: int = 2) -> None:
            for number in range(days):
                schedules.day(date.fromisoformat(first) + timedelta(days=number))

        yield run


def import_rows(engine: Engine, folder: Path, progress: Progress | None = None, **rows: list[dict[str, str]]) -> int:
    """Import the rows by kind; returns the import's id."""
    result = import_folder(engine, write_folder(folder, rows), FIRST, progress)
    assert result.import_id is not None
    return result.import_id


def all_is_well(engine: Engine) -> bool:
    """Whether no check has anything to say about any month, closed or not."""
    with engine.connect() as connection:
        months = connection.execute(text("SELECT month FROM settlement_period")).scalars()
        dishonest = [checks.dishonest_organizations(connection, Month.of_day(day)).count for day in months.all()]
    return breaches(engine) == [] and not any(dishonest)


def states(engine: Engine) -> dict[str, str]:
    return dict(rows(engine, "SELECT to_char(month, 'YYYY-MM'), state FROM settlement_period"))  # type: ignore[arg-type]


def health(engine: Engine, after: timedelta = timedelta(0)) -> list[str]:
    """What health says on 5 May 2026, `after` so long a time of which the database saw nothing."""
    decide(engine, first_month=FIRST)
    settings = Settings(fixed_clock=instant("2026-05-05T12:00"), first_month=str(FIRST))
    situation = read_situation(engine, settings)
    later = replace(situation, database_now=situation.database_now + after)
    return list(problems(later, "Europe/Madrid", timedelta(days=30)))


def sold(engine: Engine, at: str = "2026-01-10T10:00", **values: Any) -> int:
    """An organization that sold for 100,000."""
    organization = add_organization(engine, **values)
    add_movement(engine, organization, 100_000, at)
    return organization


def killed(engine: Engine, month: Month) -> None:
    """A run of `month` that is killed before its first chunk is done."""
    with doomed(engine, at="settlement_chunk SET state = 'DONE'") as dying:
        settle(dying, month)
    assert rows(engine, "SELECT state FROM settlement_pass ORDER BY pass DESC LIMIT 1") == [("RUNNING",)]


def terminated(engine: Engine, month: Month) -> None:
    """A run of `month` that is terminated in the UI."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(IncompleteSettlementError, match="was stopped"):
        settle(engine, month, stop=stop)


def kept_waiting(engine: Engine, month: Month) -> None:
    """A run of `month` that ends because somebody is still writing."""
    organization = add_organization(engine)
    with engine.connect() as writer:
        writer.execute(
            text("""
                INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
                    commission_tax_bps, occurred_at)
                VALUES ('long', :id, 'CAPTURE', 'EUR', 5, 0, 0, '2026-02-10Z')
            """),
            {"id": organization},
        )
        with pytest.raises(IncompleteSettlementError, match="Still writing"):
            settle(engine, month, writer_wait=0.01)
        writer.commit()


@pytest.mark.parametrize("disturbed", [killed, terminated, kept_waiting])
def test_a_rerun_of_a_settled_month_that_does_not_end_holds_up_nobody(
    engine: Engine, unattended: Callable[..., None], disturbed: Callable[[Engine, Month], None]
) -> None:
    organization = sold(engine)
    settle(engine, JANUARY)
    add_movement(engine, organization, 100, "2026-01-11T10:00")
    disturbed(engine, JANUARY)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    assert all_is_well(engine)
    assert rows(engine, "SELECT count(*) FROM settlement_pass WHERE state = 'RUNNING'") == [(0,)]


@pytest.mark.parametrize("disturbed", [killed, terminated, kept_waiting])
def test_a_first_run_that_does_not_end_holds_up_nobody(
    engine: Engine, unattended: Callable[..., None], disturbed: Callable[[Engine, Month], None]
) -> None:
    sold(engine)
    disturbed(engine, JANUARY)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    assert all_is_well(engine)


def test_a_pass_that_is_left_running_is_named_with_the_command_that_ends_it(engine: Engine) -> None:
    sold(engine, "2026-04-10T10:00")
    settle(engine, APRIL)
    terminated(engine, APRIL)
    assert not any("running" in line for line in health(engine))
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "running" in line]
    assert line.startswith("2026-04: its pass 2 is running, since ")
    assert line.endswith("or bring it to its end by `ticketflow settle 2026-04`.")
    settle(engine, APRIL)
    assert not any("running" in line for line in health(engine, after=timedelta(hours=25)))


def test_a_month_that_was_settled_by_mistake_before_the_first_movement_belongs_to_the_row(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    sold(engine, "2026-02-10T10:00")
    settle(engine, DECEMBER)
    unattended("2026-03-02")
    assert states(engine) == dict.fromkeys(["2025-12", "2026-01", "2026-02"], "CLOSED")
    assert all_is_well(engine)


def test_a_month_that_was_only_begun_by_mistake_belongs_to_the_row(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    sold(engine, "2026-02-10T10:00")
    passes.begin_or_join(engine, DECEMBER)
    settle(engine, FEBRUARY)
    unattended("2026-03-02")
    assert states(engine) == dict.fromkeys(["2025-12", "2026-01", "2026-02"], "CLOSED")


def test_an_organization_entered_late_for_a_settled_month_stops_nobodys_closing(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    sold(engine)
    settle(engine, JANUARY)
    add_organization(engine, joined_on=date(2026, 1, 15))
    unattended("2026-02-03", days=1)
    assert states(engine) == {"2026-01": "CLOSED"}
    assert all_is_well(engine)


def test_a_leaving_that_is_moved_stops_nobodys_closing(engine: Engine, unattended: Callable[..., None]) -> None:
    sold(engine)
    gone = add_organization(engine, left_on=date(2025, 12, 31))
    settle(engine, JANUARY)
    execute(engine, "UPDATE organization SET left_on = '2026-01-20' WHERE id = :id", id=gone)
    unattended("2026-02-03", days=1)
    assert states(engine) == {"2026-01": "CLOSED"}


def test_a_killed_closing_is_finished_although_somebody_was_entered_late_meanwhile(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    first, second = sold(engine), sold(engine)
    settle(engine, JANUARY)
    freeze(engine, JANUARY, NOW, FIRST)
    BalanceWriter(engine, JANUARY, 100).write(first, first)
    late = sold(engine, joined_on=date(2026, 1, 15))
    unattended("2026-02-03", days=1)
    assert states(engine) == {"2026-01": "CLOSED"}
    assert [row[0] for row in balances(engine, "organization_id")] == [first, second]
    unattended("2026-03-02")
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert balances(engine, "net", where=f"organization_id = {late}") == [(OWED,)]
    assert all_is_well(engine)


def test_an_opening_balance_that_comes_while_its_month_is_closed_opens_the_next(
    engine: Engine, tmp_path: Path, unattended: Callable[..., None]
) -> None:
    sold(engine, external_ref="hall")
    settle(engine, JANUARY)

    def close_meanwhile(step: str, _: int) -> None:
        if step.startswith("checking opening_balances"):
            close(engine, JANUARY)

    import_rows(
        engine, tmp_path / "late", close_meanwhile,
        opening_balances=[{"organization_ref": "hall", "currency": "EUR", "amount": "50000"}],
    )  # fmt: skip
    unattended("2026-03-02")
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert balances(engine, "opening", "due") == [(0, OWED), (50_000, 50_000)]
    assert all_is_well(engine)


def test_an_import_that_a_pass_has_read_stays_although_it_came_to_nothing(
    engine: Engine, tmp_path: Path, unattended: Callable[..., None]
) -> None:
    add_organization(engine, external_ref="hall")
    settle_and_close(engine, JANUARY)
    settle(engine, FEBRUARY)
    capture = MOVEMENT | {"external_ref": "c", "organization_ref": "hall", "occurred_at": "2026-01-10T10:00:00Z"}
    void = capture | {"external_ref": "v", "amount": "-100000", "reverses_ref": "c", "is_void": "true"}
    import_rows(engine, tmp_path / "capture", money_movements=[capture])
    last = import_rows(engine, tmp_path / "void", money_movements=[void])
    assert settle(engine, FEBRUARY).rows_adjusted == 0
    with pytest.raises(
        TicketflowError, match="cannot be undone: month 2026-01 of organization 'hall' is settled with it"
    ):
        undo_import(engine, last)
    unattended("2026-03-02")
    assert all_is_well(engine)


@pytest.mark.parametrize("disturbed", [killed, terminated])
def test_a_pass_that_nobody_works_on_does_not_keep_an_import(
    engine: Engine, tmp_path: Path, unattended: Callable[..., None], disturbed: Callable[[Engine, Month], None]
) -> None:
    sold(engine, external_ref="hall")
    settle(engine, JANUARY)
    wrong = MOVEMENT | {"external_ref": "c", "organization_ref": "hall", "occurred_at": "2026-01-10T10:00:00Z"}
    last = import_rows(engine, tmp_path / "wrong", money_movements=[wrong])
    disturbed(engine, JANUARY)
    undo_import(engine, last)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    assert balances(engine, "net") == [(OWED,)]
    assert all_is_well(engine)


def poisoned(engine: Engine, organization: int, at: str = "2026-01-10T10:00") -> list[int]:
    """Enter amounts whose sum no ledger can hold."""
    return [add_movement(engine, organization, 2**62, at) for _ in range(3)]


def test_a_pass_that_was_given_up_makes_no_honest_month_dishonest(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    good, bad = add_organization(engine), add_organization(engine, external_ref="bad")
    settle(engine, JANUARY)
    add_movement(engine, good, 100_000, "2026-01-10T10:00")
    poison = poisoned(engine, bad)
    with pytest.raises(ParkedLimitError):
        settle(engine, JANUARY, parked_limit=0, chunk_size=1)
    assert all_is_well(engine)
    [line] = [line for line in health(engine) if "given up" in line]
    assert line.startswith("2026-01: its pass 2 was given up: 0 organizations are parked in 2026-01 and bad fails too")
    assert line.endswith("correct the data, then `ticketflow settle 2026-01`.")
    for movement in poison:
        add_void(engine, movement)
    unattended("2026-02-03", days=1)
    assert states(engine) == {"2026-01": "CLOSED"}
    assert all_is_well(engine)
    assert not any("given up" in line for line in health(engine))


def test_a_closed_months_total_has_what_a_given_up_pass_posted(engine: Engine, unattended: Callable[..., None]) -> None:
    good, bad = add_organization(engine), add_organization(engine)
    settle_and_close(engine, JANUARY)
    settle(engine, FEBRUARY)
    add_movement(engine, good, 100_000, "2026-01-10T10:00")
    poisoned(engine, bad, "2026-02-10T10:00")
    with pytest.raises(ParkedLimitError):
        settle(engine, FEBRUARY, parked_limit=0, chunk_size=1)
    unattended("2026-03-02", days=1)
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert rows(engine, "SELECT net FROM settlement_total WHERE month = '2026-02-01'") == [(OWED,)]
    assert rows(engine, "SELECT sum(net) FROM ledger_entry WHERE month = '2026-02-01'") == [(OWED,)]


def test_a_run_that_joined_a_pass_is_not_green_when_that_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    organizations = [add_organization(engine) for _ in range(4)]
    settle(engine, JANUARY)
    for organization in organizations:
        add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    running, _ = passes.begin_or_join(engine, JANUARY)
    passes.plan(engine, running, 1, 100)
    drain = Drain.run

    def given_up_meanwhile(*arguments: Any) -> None:
        monkeypatch.undo()
        passes.give_up(engine, running, "too many fail")
        drain(*arguments)

    monkeypatch.setattr(Drain, "run", given_up_meanwhile)
    result = settle(engine, JANUARY)
    assert result.rows_adjusted == 4
    assert rows(engine, "SELECT pass, state FROM settlement_pass ORDER BY 1") == [
        (1, "DONE"), (2, "GIVEN_UP"), (3, "DONE"),
    ]  # fmt: skip
    assert all_is_well(engine)


def test_a_run_that_gives_up_a_pass_that_others_left_says_why_its_own_fails(engine: Engine) -> None:
    """And does not leave that running, as if somebody had stopped it."""
    for _ in range(20):
        poisoned(engine, add_organization(engine))
    terminated(engine, JANUARY)
    with pytest.raises(ParkedLimitError, match=r"\d organizations are parked in 2026-01 and .* fails too"):
        settle(engine, JANUARY, parked_limit=1, chunk_size=1, workers=2)
    assert rows(engine, "SELECT state FROM settlement_pass ORDER BY pass") == [("GIVEN_UP",), ("GIVEN_UP",)]


@pytest.mark.parametrize("entered_late", [False, True])
def test_an_organization_in_a_zone_that_nobody_knows_stops_itself_alone_and_is_named(
    engine: Engine, unattended: Callable[..., None], *, entered_late: bool
) -> None:
    sold(engine)
    if entered_late:
        settle(engine, JANUARY)
    lost = sold(engine, external_ref="mars", timezone="Mars/Olympus")
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "mars" in line]
    assert line.startswith("data: organization mars: ")
    assert "Mars/Olympus" in line
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=lost)
    unattended("2026-03-02")
    assert balances(engine, "net", where=f"organization_id = {lost}") == [(OWED,)]
    assert all_is_well(engine)
    assert not any("mars" in line for line in health(engine, after=timedelta(hours=25)))


def test_an_opening_balance_of_somebody_in_an_unknown_zone_waits_and_keeps_nobody_from_a_statement(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    sold(engine)
    lost = add_organization(engine, timezone="Mars/Olympus", joined_on=date(2026, 6, 1))
    add_opening_balance(engine, lost, 500)
    unattended("2026-02-02")
    assert rows(engine, "SELECT state, stated_at IS NOT NULL FROM settlement_period") == [("CLOSED", True)]
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=lost)
    unattended("2026-03-02")
    assert balances(engine, "month", "opening", where=f"organization_id = {lost}") == [(date(2026, 2, 1), 500)]


def test_an_organization_that_cannot_be_settled_is_named_and_goes_on_when_its_data_are_corrected(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    bad = add_organization(engine, external_ref="bad")
    poison = poisoned(engine, bad)
    sold(engine)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "bad" in line]
    assert line.startswith("organization bad is parked in 2026-01: bigint out of range")
    assert line.endswith("void what is wrong among its movements; the next settlement takes it in.")
    for movement in poison:
        add_void(engine, movement)
    unattended("2026-03-02")
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert not any("bad" in line for line in health(engine, after=timedelta(hours=25)))
    assert all_is_well(engine)


def test_an_organization_whose_balance_cannot_be_written_is_named_and_catches_up(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    rich = add_organization(engine, external_ref="rich")
    add_opening_balance(engine, rich, 2**62)
    huge = add_movement(engine, rich, 2**62, "2026-01-10T10:00", commission_rate_bps=0, commission_tax_bps=0)
    sold(engine)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "rich" in line]
    assert line.startswith("organization rich is parked in 2026-01: its balance: ")
    add_void(engine, huge)
    unattended("2026-03-02")
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert balances(engine, "month", "opening", "net", where=f"organization_id = {rich}") == [
        (date(2026, 2, 1), 2**62, 0)
    ]
    assert all_is_well(engine)
    assert not any("rich" in line for line in health(engine, after=timedelta(hours=25)))


def test_a_closing_that_cannot_settle_what_came_since_says_why(engine: Engine) -> None:
    sold(engine)
    settle(engine, JANUARY)
    sold(engine, external_ref="mars", timezone="Mars/Olympus")
    with pytest.raises(IncompleteClosingError, match=r"2026-01 is not closed, .* 1 organizations are in time zones"):
        close(engine, JANUARY, parked_limit=0)
    assert state_of(engine, JANUARY) == "SETTLED"
    close(engine, JANUARY)
    assert state_of(engine, JANUARY) == "CLOSED"


def test_a_host_whose_clock_is_a_month_ahead_settles_no_month_that_is_not_over(engine: Engine) -> None:
    today = datetime.now(UTC)
    add_movement(engine, add_organization(engine), 100_000, today.isoformat())
    month = Month(today.year, today.month)
    with pytest.raises(TicketflowError, match=f"{month} is not over in Europe/Madrid before "):
        settle(engine, month, now=today + timedelta(days=40))
    assert states(engine) == {}


def test_what_the_board_says_is_next_where_a_rerun_was_left(engine: Engine) -> None:
    sold(engine)
    settle(engine, JANUARY)
    terminated(engine, JANUARY)
    with engine.connect() as connection:
        [month] = read_board(connection, instant("2026-02-05T05:00"), FIRST).months
    assert (month.state, month.next_step) == ("SETTLED", "being settled, pass 2")


def test_movements_before_the_first_month_are_named_since_nobody_settles_them(engine: Engine) -> None:
    organization = sold(engine, "2026-04-10T10:00")
    settle_and_close(engine, APRIL)
    assert not any("first month" in line for line in health(engine))
    add_movement(engine, organization, 100, "2024-12-10T10:00", external_ref="old")
    [line] = [line for line in health(engine) if "first month" in line]
    assert line.startswith("movements: some lie before 2025-01, the first month, such as old at 2024-12-10T10:00:00")


def test_a_month_that_stands_still_for_three_days_is_named_with_its_command(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    pay_from(engine, None)
    sold(engine, "2026-04-10T10:00")
    settle(engine, APRIL)
    assert not any("closed" in line for line in health(engine, after=timedelta(days=2)))
    [line] = [line for line in health(engine, after=timedelta(days=4)) if "closed" in line]
    assert line.startswith("2026-04 is SETTLED and not closed, since ")
    assert line.endswith("`ticketflow close 2026-04` closes it, or says why not.")
    close(engine, APRIL)
    [line] = [line for line in health(engine, after=timedelta(days=4)) if "closed" in line]
    assert line.startswith("2026-04 was closed ")
    assert " and lacks statements; materialize settlement_statements for it" in line
    unattended("2026-05-04")
    assert not any("closed" in line for line in health(engine, after=timedelta(days=4)))
