"""What stands in front does not hide what could go, and what was delivered does not slow down what waits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from tests.outbox.relay.world import DELIVERED, Receiver, add, add_many, change, delivery, run, states
from tests.support.copies import shared_database
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.backlog import read_backlog
from ticketflow_orch.outbox.relay import Round, due, fetch, is_due
from ticketflow_orch.outbox.relay.connections import PLANNED_ONCE

PENDING, BURIED = 100, 20_000


def test_events_behind_a_head_that_waits_hide_no_others(engine: Engine) -> None:
    add_many(engine, 3000, aggregates=1)
    change(engine, "Told1", "available_at = clock_timestamp() + interval '1 hour'")
    for number in range(30):
        add(engine, f"free-{number}")
    receiver = Receiver()
    assert run(engine, delivery(receiver), batch=20).delivered == 30
    assert sorted(receiver.names) == sorted(f"free-{number}" for number in range(30))


def test_heads_that_wait_in_many_aggregates_hide_no_others(engine: Engine) -> None:
    # More of them than one step of the walk visits, and what could go comes last in its order.
    add_many(engine, 2 * (due.VISITED + 500), aggregates=due.VISITED + 500)
    with engine.begin() as connection:
        connection.execute(
            text("""
                UPDATE outbox_event SET available_at = clock_timestamp() + interval '1 hour'
                WHERE CAST(payload ->> 'number' AS int) <= CAST(:heads AS int)
            """),
            {"heads": due.VISITED + 500},
        )
    add(engine, "free", aggregate="zzz")
    with engine.connect() as connection:
        assert is_due(connection, delivery(), Round())
    assert run(engine, delivery(Receiver()), batch=20).delivered == 1
    with engine.connect() as connection:
        assert not is_due(connection, delivery(), Round())


def test_a_question_about_many_aggregates_is_bounded_and_the_next_one_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "PROBED", 50)
    add_many(engine, 240, aggregates=120)
    with engine.begin() as connection:
        connection.execute(
            text("""
                UPDATE outbox_event SET available_at = clock_timestamp() + interval '1 hour'
                WHERE CAST(payload ->> 'number' AS int) <= 120
            """)
        )
    add(engine, "free", aggregate="zzz")
    walk = Round()
    with engine.connect() as connection:
        assert [is_due(connection, delivery(), walk) for _ in range(4)] == [False, False, True, False]


def test_a_held_event_keeps_the_later_ones_of_its_aggregate_waiting(engine: Engine) -> None:
    add(engine, "held", aggregate="one")
    add(engine, "later", aggregate="one")
    change(engine, "held", "state = 'HELD', available_at = NULL")
    assert run(engine, delivery(Receiver())).delivered == 0
    with engine.connect() as connection:
        assert not is_due(connection, delivery(), Round())
        backlog = read_backlog(connection)
    assert (backlog.waiting, backlog.held, backlog.dead, backlog.in_doubt) == (2, 1, 0, 0)
    assert backlog.oldest_age > 0
    change(engine, "held", "state = 'PENDING', available_at = clock_timestamp()")
    run(engine, delivery(Receiver()))
    assert states(engine) == {"held": "DELIVERED", "later": "DELIVERED"}


def test_one_aggregate_with_many_events_is_delivered_in_order_to_the_last(engine: Engine) -> None:
    add_many(engine, 150, aggregates=1)
    receiver = Receiver(lambda _: DELIVERED)
    assert run(engine, delivery(receiver)).delivered == 150
    assert receiver.names == [f"Told{number}" for number in range(1, 151)]


@pytest.fixture(scope="module")
def buried(server: EmbeddedServer) -> Iterator[Engine]:
    """A hundred pending events of one type behind twenty thousand that were delivered."""
    with shared_database(server) as engine:
        with engine.begin() as connection:
            connection.execute(
                text("""
                    INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key,
                        occurred_at, state, available_at, ended_at)
                    SELECT 'thing', CAST(n % 5000 AS text), 'Told', '{}', 'buried' || n, now(),
                        'DELIVERED', NULL, now()
                    FROM generate_series(1, CAST(:number AS bigint)) AS n
                """),
                {"number": BURIED},
            )
        add_many(engine, PENDING, aggregates=PENDING)
        yield engine


WANTED = fetch.Wanted("somebody", 60, "there", ("Told",), (), ())
VALUES = {**WANTED.parameters, "size": 100, "window": 200, "visited": 2000, "after_type": "", "after_id": ""}
_BOUND = re.compile(r"%\(([a-z_]+)\)s")


def planned(connection: Connection, statement: str) -> str:
    """How the server carries out the statement as a prepared one, whose plan is made without its parameters."""
    names = list(dict.fromkeys(_BOUND.findall(statement)))
    numbered = _BOUND.sub(lambda name: f"${names.index(name[1]) + 1}", statement)
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with psycopg.ClientCursor(driver) as cursor:
        cursor.execute(PLANNED_ONCE)
        cursor.execute(f"PREPARE looked_at AS {numbered}")
        arguments = f"({', '.join(['%s'] * len(names))})" if names else ""
        cursor.execute(f"EXPLAIN (ANALYZE) EXECUTE looked_at {arguments}", [VALUES[name] for name in names])
        plan = "\n".join(row[0] for row in cursor)
        cursor.execute("ROLLBACK")
        cursor.execute("DEALLOCATE looked_at")
    return plan


@pytest.mark.parametrize("analyzed", [False, True], ids=["statistics of nobody", "statistics"])
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (fetch._CLAIM_OLDEST, "outbox_event_due_idx"),
        (due._DUE_OLDEST, "outbox_event_due_idx"),
        (fetch._CLAIM_SCATTERED, "outbox_event_waiting_idx"),
        (due._WAITING, "outbox_event_due_idx"),
    ],
    ids=["claim", "probe", "walk", "types"],
)
def test_what_was_delivered_is_not_looked_at(buried: Engine, statement: str, index: str, analyzed: bool) -> None:
    with buried.connect() as connection:
        if analyzed:
            connection.execute(text("ANALYZE outbox_event"))
            connection.commit()
        plan = planned(connection, statement)
        asked_once = "\n".join(connection.exec_driver_sql(f"EXPLAIN (ANALYZE) {statement}", VALUES).scalars())
        connection.rollback()
    for way in (plan, asked_once):
        assert index in way
        assert "Seq Scan on outbox_event" not in way
        left_out = [int(float(rows)) for rows in re.findall(r"Rows Removed by (?:Join )?Filter: (\S+)", way)]
        assert sum(left_out) <= 3 * PENDING
