"""Whatever a crash, a slip or a late entry leaves behind: the schedules alone go on from there, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    APRIL,
    FEBRUARY,
    FIRST,
    JANUARY,
    balances,
    close,
    settle_and_close,
)
from tests.support.disturbed import (
    DECEMBER,
    MOVEMENT,
    OWED,
    all_is_well,
    health,
    import_rows,
    kept_waiting,
    killed,
    poisoned,
    sold,
    states,
    terminated,
)
from tests.support.payable import rows
from tests.support.rows import add_movement, add_organization, add_void
from tests.support.settled import NOW, settle
from tests.support.sql_statements import execute
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import freeze
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import undo_import
from ticketflow_orch.months import Month
from ticketflow_orch.settlement import passes
from ticketflow_orch.settlement.passes import ParkedLimitError
from ticketflow_orch.settlement.worker import Drain


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
