"""Two transactions at once: what one of them forbids, the other cannot have done meanwhile, whichever comes first."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.rows import add_event, add_organization, add_reservation
from tests.support.sessions import PATIENCE, two_sessions
from tests.support.sql_statements import LEDGER_ROW, begin_month, begin_pass, execute, insertion, refusal

pytestmark = pytest.mark.every_server

POST = insertion("ledger_entry", LEDGER_ROW | {"organization_id": "(SELECT count(*) FROM ledger_entry)"})
SETTLE = "UPDATE settlement_period SET state = 'SETTLED', settled_at = clock_timestamp(), settled_by = 'a'"
CLOSE_MONTH = "UPDATE settlement_period SET state = 'CLOSING'"
CLOSE_EVENT = "UPDATE event SET status = 'CLOSED', closed_at = clock_timestamp()"
RESERVE = """
    INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at)
    SELECT gen_random_uuid(), max(id), 'b', 1, 'ACTIVE', now(), now() FROM event
"""
FIRST_MOVEMENT = """
    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    SELECT 'first', id, 'CAPTURE', currency, 100, 1000, 2000, '2026-03-10Z' FROM organization
"""
MOVE_ZONE = "UPDATE organization SET timezone = 'Asia/Tokyo'"
CHANGE_EVENT = """
    UPDATE reservation SET event_id = event.id FROM event WHERE event.id <> reservation.event_id
"""


def prepare(engine: Engine) -> None:
    begin_month(engine)
    execute(engine, SETTLE)
    organization = add_organization(engine)
    add_reservation(engine, add_event(engine, organization))
    add_event(engine, organization)


RACES = [
    pytest.param(POST, CLOSE_MONTH, "month 2026-03 is closed", id="posting and closing its month"),
    pytest.param(RESERVE, CLOSE_EVENT, "is not open", id="reserving and closing the event"),
    pytest.param(CHANGE_EVENT, CLOSE_EVENT, "is not open", id="moving a reservation and closing the event"),
]


@pytest.mark.parametrize(("work", "closing", "sentence"), RACES)
def test_work_that_comes_after_a_closing_waits_for_it_and_is_refused(
    engine: Engine, work: str, closing: str, sentence: str
) -> None:
    prepare(engine)
    with two_sessions(engine) as (closer, worker):
        closer.run(closing)
        working = worker.start(work)
        assert worker.waits()
        closer.commit()
        with pytest.raises(DBAPIError, match=sentence):
            working.result(PATIENCE)


@pytest.mark.parametrize(("work", "closing", "sentence"), RACES)
def test_a_closing_that_is_taken_back_refuses_nothing(engine: Engine, work: str, closing: str, sentence: str) -> None:
    prepare(engine)
    with two_sessions(engine) as (closer, worker):
        closer.run(closing)
        working = worker.start(work)
        assert worker.waits()
        closer.rollback()
        working.result(PATIENCE)


@pytest.mark.parametrize(("work", "closing", "sentence"), RACES)
def test_a_closing_that_comes_after_work_waits_for_it(engine: Engine, work: str, closing: str, sentence: str) -> None:
    prepare(engine)
    with two_sessions(engine) as (worker, closer):
        worker.run(work)
        closing_now = closer.start(closing)
        assert closer.waits()
        worker.commit()
        closing_now.result(PATIENCE)
        closer.commit()
    assert sentence in refusal(engine, work)


def test_a_posting_that_has_seen_its_month_open_is_refused_once_it_is_closed(engine: Engine) -> None:
    prepare(engine)
    with two_sessions(engine) as (closer, worker):
        worker.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        worker.run("SELECT state FROM settlement_period")
        closer.run(CLOSE_MONTH)
        closer.commit()
        with pytest.raises(DBAPIError, match="could not serialize access"):
            worker.run(POST)


def test_a_zone_that_moves_after_a_first_movement_waits_for_it_and_is_refused(engine: Engine) -> None:
    prepare(engine)
    with two_sessions(engine) as (application, operator):
        application.run(FIRST_MOVEMENT)
        moving = operator.start(MOVE_ZONE)
        assert operator.waits()
        application.commit()
        with pytest.raises(DBAPIError, match="its time zone and currency cannot change"):
            moving.result(PATIENCE)


def test_a_first_movement_waits_for_the_zone_that_is_moving(engine: Engine) -> None:
    prepare(engine)
    with two_sessions(engine) as (operator, application):
        operator.run(MOVE_ZONE)
        first = application.start(FIRST_MOVEMENT)
        assert application.waits()
        operator.commit()
        first.result(PATIENCE)
        application.commit()
    assert "cannot change" in refusal(engine, "UPDATE organization SET timezone = 'Europe/Madrid'")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "change",
    [
        MOVE_ZONE,
        "UPDATE organization SET currency = 'JPY'",
        "DELETE FROM organization",
        "DELETE FROM money_movement",
    ],
)
def test_what_is_judged_by_movements_is_not_judged_by_a_snapshot_that_is_older(
    engine: Engine, level: str, change: str
) -> None:
    organization = add_organization(engine)
    with two_sessions(engine) as (operator, application):
        operator.run(f"SET TRANSACTION ISOLATION LEVEL {level}")
        operator.run("SELECT count(*) FROM money_movement")
        application.run(FIRST_MOVEMENT)
        application.commit()
        with pytest.raises(DBAPIError, match=f"a transaction in {level} may not see what others have committed"):
            operator.run(change)
    assert execute(engine, f"UPDATE organization SET name = 'other' WHERE id = {organization}") == 1


def test_a_closing_is_not_taken_back_by_who_cannot_see_the_balances_that_it_wrote(engine: Engine) -> None:
    prepare(engine)
    execute(engine, CLOSE_MONTH)
    with two_sessions(engine) as (operator, closing):
        operator.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        operator.run("SELECT count(*) FROM organization_balance")
        closing.run("""
            INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due, payable,
                closing)
            VALUES (1, 'EUR', '2026-03-01', 0, 0, 0, 0, 0, 0)
        """)
        closing.commit()
        with pytest.raises(DBAPIError, match="may not see what others have committed"):
            operator.run("UPDATE settlement_period SET state = 'SETTLED'")


@pytest.mark.parametrize("table", ["organization", "money_movement"])
def test_a_deletion_is_waited_for_by_the_next_pass_or_sees_the_one_that_runs(engine: Engine, table: str) -> None:
    add_organization(engine)
    with two_sessions(engine) as (remover, _):
        remover.run(f"DELETE FROM {table}")
        # What a pass waits for after its cutoff.
        with engine.connect() as connection:
            holders = connection.execute(
                text("""
                    SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
                    WHERE relation = 'money_movement'::regclass AND mode = 'RowExclusiveLock' AND granted
                        AND datname = current_database()
                """)
            ).scalars()
            assert list(holders) == [remover.pid]
        remover.rollback()
        begin_pass(engine)
        with pytest.raises(DBAPIError, match=f"nothing is deleted from {table} while a settlement runs"):
            remover.run(f"DELETE FROM {table}")
