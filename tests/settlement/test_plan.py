"""What a settlement asks of the server: how many statements, by which plan, and how much of the history it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from tests.support.plans import (
    ZONES,
    Node,
    add_entries_of_the_months_before,
    add_movements,
    nodes,
    scans_of,
)
from tests.support.rows import add_organization, instant
from tests.support.settled import MARCH, settle
from tests.support.sql_statements import execute
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.posting import LARGEST_ID, Chunk, Pass, post_chunk

FEBRUARY = MARCH.previous()
CHUNK = Chunk(MARCH, 301, 600)
IN_CHUNK = 300
MOVEMENTS_INDEX = "money_movement_settlement_idx"

Statement = tuple[str, dict[str, Any]]


@contextmanager
def statements(engine: Engine) -> Iterator[list[Statement]]:
    """What the block executes, but for looks at the progress: on a slow machine there are more of them."""
    executed: list[Statement] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: dict[str, Any], *_: Any) -> None:
        if "count(*) AS total" not in statement:
            executed.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield executed
    event.remove(engine, "before_cursor_execute", note)


# Statements


def statements_to_settle(engine: Engine, month: Month, chunk_size: int) -> int:
    with statements(engine) as executed:
        settle(engine, month, chunk_size=chunk_size, workers=1, full=True)
    return len(executed)


def test_a_chunk_takes_three_statements_at_first_and_four_again(engine: Engine) -> None:
    for _ in range(12):
        add_organization(engine)
    for a_chunk in (3, 4):
        one_chunk = statements_to_settle(engine, FEBRUARY, chunk_size=12)
        four_chunks = statements_to_settle(engine, MARCH, chunk_size=3)
        assert four_chunks - one_chunk == 3 * a_chunk


def test_more_organizations_take_no_more_statements(engine: Engine) -> None:
    add_organization(engine)
    one_organization = statements_to_settle(engine, FEBRUARY, chunk_size=1000)
    for _ in range(100):
        add_organization(engine)
    assert statements_to_settle(engine, MARCH, chunk_size=1000) == one_organization


# The plan


@pytest.mark.every_server
@pytest.mark.parametrize("number", [1, 2], ids=["first", "again"])
def test_a_chunk_finds_its_movements_in_the_index_alone_by_the_same_plan_custom_or_generic(
    engine: Engine, number: int
) -> None:
    add_movements(engine, months=24)
    custom, generic = (explain(engine, number, mode) for mode in ("custom", "generic"))
    for plan in (custom, generic):
        (scan,) = scans_of(plan, "money_movement")
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", MOVEMENTS_INDEX)
        assert scan["Heap Fetches"] == 0
        # Once for each organization, with both ends of the month: nothing of another month is read.
        assert scan["Actual Loops"] == IN_CHUNK
        assert "occurred_at >=" in scan["Index Cond"]
        assert "occurred_at <" in scan["Index Cond"]
    assert readings(custom) == readings(generic)


@pytest.mark.every_server
@pytest.mark.parametrize("number", [1, 2], ids=["first", "again"])
@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_currencies_that_were_replaced_are_looked_up_by_their_key_and_only_where_there_are_any(
    engine: Engine, number: int, mode: str
) -> None:
    add_movements(engine, months=2)
    assert [scan["Actual Loops"] for scan in lookups(explain(engine, number, mode))] == [0]
    execute(
        engine,
        """
        INSERT INTO organization_currency (organization_id, from_month, currency, decided_by)
        SELECT id, month, 'USD', 'test' FROM organization,
            unnest(CAST('{2026-01-01,2026-02-01,2026-03-01,2026-04-01}' AS date[])) AS month
        """,
    )
    execute(engine, "ANALYZE organization_currency")
    [scan] = lookups(explain(engine, number, mode))
    assert (scan["Index Name"], scan["Actual Loops"], scan["Actual Rows"]) == (
        "organization_currency_pkey",
        IN_CHUNK,
        1,
    )


def lookups(plan: Node) -> list[Node]:
    """How an organization's currency is looked up, aside from whether there is anything to look up."""
    return [node for node in scans_of(plan, "organization_currency") if node["Node Type"] != "Seq Scan"]


@pytest.mark.every_server
@pytest.mark.parametrize("number", [1, 2], ids=["first", "again"])
def test_what_a_chunk_reads_does_not_grow_with_the_months_of_history(engine: Engine, number: int) -> None:
    add_movements(engine, months=2)
    with_two_months = pages_read(explain(engine, number, "generic"))
    add_movements(engine, months=24)
    with_twelve_times_as_many = pages_read(explain(engine, number, "generic"))
    # The way down an index of so many entries is a page longer.
    assert with_two_months <= with_twelve_times_as_many < 2 * with_two_months


@pytest.mark.every_server
@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_a_repeat_finds_a_chunks_entries_by_their_key_though_no_statistics_know_of_the_month(
    engine: Engine, mode: str
) -> None:
    add_movements(engine, months=1)
    add_entries_of_the_months_before(engine, months=24)
    settle(engine)
    scans = scans_of(explain(engine, 2, mode), "ledger_entry")
    assert [scan.get("Index Name") for scan in scans] == ["ledger_entry_pkey"]
    assert scans[0]["Actual Rows"] == IN_CHUNK


@pytest.mark.every_server
def test_a_months_total_is_summed_without_sorting_its_entries_though_no_statistics_know_of_the_month(
    engine: Engine,
) -> None:
    add_movements(engine, months=1)
    add_entries_of_the_months_before(engine, months=24)
    plans: list[Node] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note_plan(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "INSERT INTO settlement_total" in statement:
            with cursor.connection.cursor() as own:
                own.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
                plans.append(own.fetchone()[0][0]["Plan"])

    settle(engine)
    (plan,) = plans
    assert {node["Strategy"] for node in nodes(plan) if node["Node Type"] == "Aggregate"} >= {"Hashed"}
    assert not [node for node in nodes(plan) if node["Node Type"] == "Sort"]


def explain(engine: Engine, number: int, mode: str) -> Node:
    """The plan by which pass `number` posts the chunk, custom (made for its parameters) or generic; changes nothing."""
    windows = {zone: MARCH.window(zone) for zone in ZONES}
    settlement = Pass(MARCH, number, LARGEST_ID, instant("2026-06-15T12:00"))
    with engine.connect() as connection, statements(engine) as executed:
        post_chunk(connection, settlement, CHUNK, windows, "run", first=number == 1)
        connection.rollback()
    *settings, (posting, parameters) = executed
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", posting)))
    numbered = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", posting)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        # Binds on the client: EXECUTE is no statement that takes parameters.
        cursor = psycopg.ClientCursor(driver)
        for setting, _ in settings:
            cursor.execute(setting)
        cursor.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan")
        cursor.execute(f"PREPARE posting AS {numbered}")
        cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE posting ({', '.join(['%s'] * len(names))})",
            [parameters[name] for name in names],
        )
        (explained,) = cursor.fetchone() or ((),)
        driver.rollback()
        cursor.execute("DEALLOCATE posting")
        return explained[0]["Plan"]


def readings(plan: Node) -> list[tuple[str, str, str | None, int]]:
    """How each table is read, in the order of the plan."""
    return [
        (node["Relation Name"], node["Node Type"], node.get("Index Name"), node["Actual Loops"])
        for node in nodes(plan)
        if "Scan" in node["Node Type"] and "Relation Name" in node
    ]


def pages_read(plan: Node) -> int:
    """Pages of `money_movement` and its index; one that is read twice counts twice."""
    (scan,) = scans_of(plan, "money_movement")
    return int(scan["Shared Hit Blocks"] + scan["Shared Read Blocks"])
