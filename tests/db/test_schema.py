"""The wrong states that the schema makes impossible."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import Engine, text

from tests.support.machines import MACHINES, Machine, machine_of
from tests.support.sql_statements import (
    STAMP,
    begin_month,
    begin_pass,
    execute,
    insertion,
    refusal,
)

pytestmark = pytest.mark.every_server

# --- What the catalogue promises


def column_types(engine: Engine) -> dict[str, str]:
    with engine.connect() as connection:
        rows = connection.execute(
            text("""
                SELECT table_name || '.' || column_name AS name, coalesce(domain_name, data_type) AS type
                FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
            """)
        )
        return {row.name: row.type for row in rows}


def test_every_column_is_of_a_type_that_neither_rounds_nor_forgets_its_zone(engine: Engine) -> None:
    exact = {
        "bigint", "integer", "smallint", "numeric", "character", "text", "boolean", "date", "month_start",
        "timestamp with time zone", "interval", "uuid", "jsonb", "bytea", "ARRAY",
    }  # fmt: skip
    assert {name: type_ for name, type_ in column_types(engine).items() if type_ not in exact} == {}


def test_instants_and_months_have_one_type_each(engine: Engine) -> None:
    types = column_types(engine)
    instants = {type_ for name, type_ in types.items() if name.endswith(("_at", "_until", ".since"))}
    months = {type_ for name, type_ in types.items() if name.endswith("month")}
    assert (instants, months) == ({"timestamp with time zone"}, {"month_start"})


@pytest.mark.parametrize("day", ["2026-03-02", "2026-03-31", "2024-02-29", "infinity", "-infinity"])
def test_a_month_is_the_first_day_of_one(engine: Engine, day: str) -> None:
    assert "month_start_check" in refusal(engine, "SELECT CAST(:day AS month_start)", day=day)


# --- States move along their machine only


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.table)
def test_states_move_along_their_machine_only(surrounded: Engine, machine: Machine) -> None:
    refused = set()
    for before, after in itertools.permutations(machine.states, 2):
        with surrounded.connect() as connection:
            against = machine.objection(connection, before, after)
        if against is not None:
            assert f"{machine.table} may not go from {before} to {after}" in against
            refused.add((before, after))
    assert set(itertools.permutations(machine.states, 2)) - refused == machine.lawful


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.table)
def test_what_a_state_does_not_have_is_not_there(surrounded: Engine, machine: Machine) -> None:
    for state, (column, states) in itertools.product(machine.states, machine.filled.items()):
        if column == "confirmed_at" and state != "CONFIRMED":
            continue  # a reservation that was confirmed and then cancelled keeps the instant
        if column == "answered_at" and state not in states:
            continue  # a payout that a person sends again keeps the instant of the answer
        wrong = machine.values(state) | {column: "NULL" if state in states else STAMP}
        assert "violates check constraint" in refusal(surrounded, insertion(machine.table, machine.row | wrong))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.table)
def test_an_unknown_state_is_refused_whatever_else_the_row_says(surrounded: Engine, machine: Machine) -> None:
    lost = {machine.column: "'LOST'"}
    against = [
        refusal(surrounded, insertion(machine.table, machine.row | machine.values(state) | lost))
        for state in machine.states
    ]
    assert any(f'violates check constraint "{machine.table}_{machine.column}_check"' in said for said in against)


@pytest.mark.parametrize(
    "change",
    [
        "closed_at = now()",
        "closed_by = 'other'",
        "closed_role = 'other'",
        "closed_run_id = 'other'",
        "settled_at = now()",
        "settled_by = 'other'",
        "month = '2026-04-01'",
    ],
)
def test_who_closed_a_month_and_when_stays_as_it_was_written(engine: Engine, change: str) -> None:
    machine = machine_of("settlement_period")
    execute(engine, insertion(machine.table, machine.row | machine.values("CLOSED")))
    assert "stays as it was written" in refusal(engine, f"UPDATE settlement_period SET {change}")
    assert execute(engine, "UPDATE settlement_period SET paid_at = now(), stated_at = now(), read_to = 7") == 1


@pytest.mark.parametrize("state", ["SETTLED", "CLOSING", "CLOSED"])
def test_a_period_that_is_settled_or_closed_stays(engine: Engine, state: str) -> None:
    machine = machine_of("settlement_period")
    execute(engine, insertion(machine.table, machine.row | machine.values(state)))
    assert "stays so" in refusal(engine, "DELETE FROM settlement_period")
    assert "stays so" in refusal(engine, "TRUNCATE settlement_period CASCADE")


def test_a_pass_keeps_its_cutoff(engine: Engine) -> None:
    begin_pass(engine)
    for change in ("cutoff = 2", "cutoff_at = clock_timestamp()", "is_full = true", "pass = 2"):
        assert "never changes its month, number or cutoff" in refusal(engine, f"UPDATE settlement_pass SET {change}")


def test_what_is_read_stays_read(engine: Engine) -> None:
    begin_month(engine)
    assert execute(engine, "UPDATE settlement_period SET read_to = 10") == 1
    for value in ("9", "NULL"):
        assert "stays read" in refusal(engine, f"UPDATE settlement_period SET read_to = {value}")
    assert execute(engine, "UPDATE settlement_period SET read_to = 11") == 1


def test_one_pass_of_a_month_runs_at_a_time(engine: Engine) -> None:
    begin_pass(engine)
    second = "INSERT INTO settlement_pass (month, pass, cutoff) VALUES ('2026-03-01', 2, 1)"
    assert "settlement_pass_one_running" in refusal(engine, second)


@pytest.mark.parametrize(
    "change",
    [
        "event_id = gen_random_uuid()",
        "aggregate_type = 'other'",
        "aggregate_id = 'other'",
        "event_type = 'other'",
        "payload = '{\"a\": 1}'",
        "dedupe_key = 'other'",
        "occurred_at = now()",
    ],
    ids=lambda change: change.partition(" ")[0],
)
def test_an_outbox_event_says_the_same_on_every_attempt(engine: Engine, change: str) -> None:
    machine = machine_of("outbox_event")
    execute(engine, insertion(machine.table, machine.row))
    assert "an outbox event never changes" in refusal(engine, f"UPDATE outbox_event SET {change}")
