"""The order of recording: every writer holds the table before it draws an id, so a drawn value is a cutoff."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_movement, add_organization
from tests.support.sessions import two_sessions
from tests.support.settled import MARCH, ledger, settle
from tests.support.sql_statements import execute
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.settlement.late_movements import next_movement_id

pytestmark = pytest.mark.every_server

COLUMNS = """
    external_ref, organization_id, kind, currency, amount, commission_rate_bps, commission_tax_bps, occurred_at
"""
VALUES = "1, 'CAPTURE', 'EUR', 5, 0, 0, '2026-03-10 10:00Z'"
ONE_MORE = f"INSERT INTO money_movement ({COLUMNS}) SELECT 'movement-' || count(*), {VALUES} FROM money_movement"
WRITERS = {
    "insert": f"INSERT INTO money_movement ({COLUMNS}) VALUES ('new', {VALUES})",
    "insert … select": ONE_MORE,
    "merge": f"""
        MERGE INTO money_movement USING (SELECT 'new' AS ref) AS wanted ON external_ref = ref
        WHEN NOT MATCHED THEN INSERT ({COLUMNS}) VALUES (ref, {VALUES})
    """,
    "prepared": "EXECUTE prepared_writer",
    "cached plan": "SELECT cached_writer()",
}
PREPARED = f"PREPARE prepared_writer AS {ONE_MORE}"
CACHED = f"CREATE FUNCTION cached_writer() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {ONE_MORE}; END $$"
COPY = f"COPY money_movement ({COLUMNS}) FROM STDIN"
COPIED = "new\t1\tCAPTURE\tEUR\t5\t0\t0\t2026-03-10 10:00Z\n"


@pytest.mark.parametrize("writer", [*WRITERS, "copy"])
def test_a_writer_that_waits_for_the_table_draws_its_id_afterwards(engine: Engine, writer: str) -> None:
    add_organization(engine, id=1)
    execute(engine, CACHED)
    with two_sessions(engine) as (holder, application):
        application.run(PREPARED)
        # Often enough that Postgres has settled on one plan for either.
        for _ in range(7):
            application.run("EXECUTE prepared_writer")
            application.run("SELECT cached_writer()")
        application.commit()
        holder.run("LOCK TABLE money_movement IN ACCESS EXCLUSIVE MODE")
        writing = application.start_copy(COPY, COPIED) if writer == "copy" else application.start(WRITERS[writer])
        assert application.waits()
        with engine.connect() as connection:
            boundary = next_movement_id(connection)
        holder.rollback()
        writing.result(timeout=60)
        application.commit()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT max(id) FROM money_movement")).scalar_one() > boundary


def test_a_sequence_that_was_set_back_settles_nothing_and_says_so(engine: Engine) -> None:
    organization = add_organization(engine)
    for _ in range(5):
        add_movement(engine, organization, 1_000, "2026-03-10T10:00")
    settle(engine)
    execute(engine, "SELECT setval('money_movement_id_seq', 1)")
    with pytest.raises(TicketflowError, match=r"money_movement_id_seq gives 2, while movements go up to 5 and .* to 7"):
        settle(engine, full=True)
    assert ledger(engine, "month", "sequence", "captures") == [(MARCH.first_day, 0, 5_000)]
    execute(engine, "SELECT setval('money_movement_id_seq', 7)")
    assert settle(engine, full=True).changed_nothing
