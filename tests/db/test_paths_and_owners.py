"""No table or path that a session brings gets past a guard, and the owner rewrites no money by mistake."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.payable import owing, requested_payout
from tests.support.rows import add_event, add_movement, add_organization, instant
from tests.support.sql_statements import LEDGER_ROW, begin_pass, execute, insertion, refusal

HIDDEN = {
    "settlement_period": "SELECT CAST('2026-03-01' AS date) AS month, 'OPEN' AS state",
    "organization_balance": "SELECT 1 AS organization_id, 'EUR' AS currency, CAST('2026-03-01' AS date) AS month,"
    " 88000 AS payable",
    "settlement_pass": "SELECT 1 AS pass WHERE false",
    "money_movement": "SELECT 1 AS organization_id WHERE false",
    "payout": "SELECT 1 AS id WHERE false",
    "event": "SELECT id, 'OPEN' AS status FROM public.event",
}


@pytest.mark.every_server
@pytest.mark.parametrize("path", ["pg_temp, public", "mine, public", "mine, pg_temp, pg_catalog, public"])
@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (insertion("ledger_entry", LEDGER_ROW), "month 2026-03 is closed"),
        (
            "INSERT INTO public.payout (organization_id, currency, month, amount, state)"
            " SELECT max(id), 'USD', '2026-03-01', 88000, 'REQUESTED' FROM public.organization",
            "its closed balance says nothing",
        ),
        ("UPDATE public.organization SET timezone = 'Asia/Tokyo'", "its time zone and currency cannot change"),
        ("DELETE FROM public.money_movement", "nothing is deleted from money_movement while a settlement runs"),
        ("DELETE FROM public.organization", "nothing is deleted from organization while a settlement runs"),
        (
            "INSERT INTO public.outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key,"
            " occurred_at) VALUES ('payout', 'x', 'PayoutRequested', '{}', 'x', now())",
            "asks for what its event says",
        ),
        ("UPDATE public.settlement_period SET state = 'OPEN'", "settlement_period may not go from CLOSED to OPEN"),
        (
            "INSERT INTO public.reservation (public_ref, event_id, buyer_email, quantity, status, created_at,"
            " expires_at) SELECT 'r', max(id), 'b', 1, 'ACTIVE', now(), now() FROM public.event",
            "is not open",
        ),
    ],
    ids=lambda value: " ".join(value.split()[:3]) if " " in value else value,
)
def test_no_table_of_a_session_and_no_path_gets_past_a_guard(
    engine: Engine, path: str, statement: str, sentence: str
) -> None:
    organization = owing(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    add_event(engine, organization, status="CLOSED", closed_at=instant("2026-06-02"))
    begin_pass(engine, "2026-04-01")
    posting = statement.replace("INTO ledger_entry", "INTO public.ledger_entry")
    with engine.connect() as connection:
        connection.execute(text("CREATE SCHEMA mine"))
        for name, rows in HIDDEN.items():
            connection.execute(text(f"CREATE TEMPORARY TABLE {name} AS {rows}"))
            connection.execute(text(f"CREATE TABLE mine.{name} AS {rows}"))
        for name in ("to_char(date, text)", "to_jsonb(anyelement)", "clock_timestamp()"):
            kind, _, rest = name.partition("(")
            connection.execute(
                text(f"CREATE FUNCTION mine.{kind}({rest} RETURNS text LANGUAGE sql AS 'SELECT CAST(NULL AS text)'")
            )
        connection.execute(text(f"SET search_path = {path}"))
        with pytest.raises(DBAPIError, match=sentence):
            connection.execute(text(posting))


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE ledger_entry SET net = 0", "ledger_entry is append-only"),
        ("DELETE FROM ledger_entry", "ledger_entry is append-only"),
        ("TRUNCATE ledger_entry", "ledger_entry is append-only"),
        ("UPDATE money_movement SET amount = 1", "money_movement is append-only"),
        ("TRUNCATE money_movement CASCADE", "is append-only"),
        ("UPDATE organization_balance SET payable = 0", "organization_balance is append-only"),
        ("DELETE FROM organization_balance", "organization_balance is append-only"),
        ("UPDATE payout SET amount = 1", "a payout never changes whose it is"),
        ("DELETE FROM payout", "payouts are never deleted"),
        ("DELETE FROM settlement_period", "stays so"),
        ("UPDATE settlement_period SET closed_by = 'other'", "stays as it was written"),
        ("UPDATE settlement_window SET ends_at = starts_at", "settlement_window is fixed"),
        ("UPDATE currency SET exponent = 4", "a currency never changes"),
        ("DELETE FROM installation", "the row of the installation is never deleted"),
        ("UPDATE outbox_event SET payload = '{}'", "an outbox event never changes"),
    ],
)
def test_the_owner_rewrites_no_money_by_mistake(engine: Engine, statement: str, sentence: str) -> None:
    requested_payout(engine)
    execute(engine, "INSERT INTO settlement_window VALUES ('2026-03-01', 'UTC', '2026-03-01Z', '2026-04-01Z')")
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    assert sentence in refusal(engine, statement)
