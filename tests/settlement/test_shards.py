"""A month on several runs: how many it is worth, and what a further run does and leaves to the one that leads."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_movement, add_organization
from tests.support.settled import MARCH, NOW, ledger, settle
from tests.support.sql_statements import counted
from ticketflow_orch.outbox import events
from ticketflow_orch.periods.state import period_state
from ticketflow_orch.settlement.passes import ParkedLimitError, begin_or_join, drained, finish, plan
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.shards import Shared, further_runs, join, open_work, runs_by_size

ORGANIZATIONS = 6


@pytest.fixture
def begun(engine: Engine) -> Pass:
    """A pass over six organizations, in a chunk each, that nobody has taken."""
    for number in range(ORGANIZATIONS):
        add_movement(engine, add_organization(engine), 100 * (number + 1), "2026-03-10T10:00")
    settlement, _ = begin_or_join(engine, MARCH)
    plan(engine, settlement, 1)
    return settlement


def help_with(engine: Engine, number: int = 1, run_id: str = "helper", workers: int = 1, **options: int) -> Shared:
    return join(engine, MARCH, number, run_id=run_id, workers=workers, **options)


def left_of(engine: Engine, settlement: Pass) -> int:
    with engine.connect() as connection:
        state = drained(connection, settlement)
    return state.total - state.done


@pytest.mark.parametrize(
    ("planned", "shards", "workers", "numbers"),
    [
        (0, 4, 2, []),
        (4, 4, 2, []),
        (5, 4, 2, [2]),
        (7, 4, 2, [2, 3]),
        (100, 4, 2, [2, 3, 4]),
        (100, 1, 2, []),
        (3, 3, 1, [2]),
    ],
)
def test_a_further_run_is_worth_it_while_more_chunks_are_left_than_there_are_workers(
    planned: int, shards: int, workers: int, numbers: list[int]
) -> None:
    assert list(further_runs(planned, shards, workers)) == numbers


@pytest.mark.parametrize(("above", "most", "runs"), [(2, 4, 3), (2, 2, 2), (5, 4, 1), (4, 4, 2), (1, 32, 5)])
def test_a_month_is_worth_a_run_for_each_so_many_organizations(
    engine: Engine, above: int, most: int, runs: int
) -> None:
    for _ in range(5):
        add_organization(engine)
    with engine.connect() as connection:
        assert runs_by_size(connection, above, most) == runs


def test_who_wants_one_run_only_counts_nobody(engine: Engine) -> None:
    with engine.connect() as connection, counted(engine) as statements:
        assert runs_by_size(connection, 1, 1) == 1
    assert statements == []


def test_a_further_run_takes_all_chunks_and_leaves_the_end_to_the_one_that_leads(engine: Engine, begun: Pass) -> None:
    shared = help_with(engine, workers=2)
    assert (shared.chunks, shared.organizations) == (ORGANIZATIONS, ORGANIZATIONS)
    assert {hand.run_id for hand in shared.hands} == {"helper"}
    assert left_of(engine, begun) == 0
    with engine.connect() as connection:
        assert period_state(connection, MARCH) == "OPEN"
    result = settle(engine)
    assert result.joined
    assert result.rows_new == ORGANIZATIONS
    assert sum(hand.chunks for hand in result.hands) == ORGANIZATIONS
    with engine.connect() as connection:
        assert period_state(connection, MARCH) == "SETTLED"


def test_a_run_that_nobody_helped_says_nothing_of_who_did_what(engine: Engine) -> None:
    add_organization(engine)
    assert settle(engine).hands == ()


def test_what_another_run_has_in_hand_is_not_waited_for(engine: Engine, begun: Pass) -> None:
    with engine.begin() as other:
        other.execute(text("SELECT FROM settlement_chunk ORDER BY low_id LIMIT 1 FOR UPDATE"))
        shared = help_with(engine)
        assert shared.chunks == ORGANIZATIONS - 1
        assert left_of(engine, begun) == 1
    # Who held it has died: it is due again.
    assert help_with(engine, run_id="another").chunks == 1


def test_who_comes_a_second_time_or_late_finds_nothing_and_ends_with_a_word(engine: Engine, begun: Pass) -> None:
    help_with(engine)
    posted = ledger(engine)
    again = help_with(engine, run_id="again")
    assert again.summary == "Nothing was done. All other chunks of pass 1 of 2026-03 are done or in other hands."
    assert finish(engine, begun, NOW, "test", events.append)
    late = help_with(engine, run_id="late")
    assert late.summary == "Nothing was done. Pass 1 of 2026-03 has ended."
    assert ledger(engine) == posted


def test_a_pass_that_is_not_planned_yet_is_no_work(engine: Engine) -> None:
    add_organization(engine)
    begin_or_join(engine, MARCH)
    with engine.connect() as connection:
        assert open_work(connection, MARCH) is None
    assert help_with(engine).chunks == 0


def test_another_pass_than_the_one_it_was_started_for_is_left_alone(engine: Engine, begun: Pass) -> None:
    assert help_with(engine, number=2).ended_because == "Pass 2 of 2026-03 has ended."
    assert left_of(engine, begun) == ORGANIZATIONS


def test_a_pass_in_which_too_many_fail_is_left_to_the_run_that_gives_it_up(engine: Engine) -> None:
    for _ in range(2):
        bad = add_organization(engine)
        for _ in range(3):
            add_movement(engine, bad, 2**62, "2026-03-10T10:00")
    settlement, _ = begin_or_join(engine, MARCH)
    plan(engine, settlement, 20_000)
    shared = help_with(engine, parked_limit=1)
    assert shared.ended_because.startswith(
        "The rest is left to the run that leads the month: 1 organizations are parked"
    )
    with engine.connect() as connection:
        assert open_work(connection, MARCH) is not None
    with pytest.raises(ParkedLimitError):
        settle(engine, parked_limit=1)
