"""Movements: what fits together, what is refused, and that what was written stays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.sql_statements import STAMP, begin_pass, execute, objection, post, refusal

pytestmark = pytest.mark.every_server


@pytest.mark.parametrize(
    ("kind", "sign", "sign_of_void"),
    [
        ("CAPTURE", "+", "-"),
        ("CHARGEBACK_REVERSAL", "+", "-"),
        ("REFUND", "-", "+"),
        ("CHARGEBACK", "-", "+"),
        ("FEE", "-", "+"),
        ("MANUAL", "+-", "-"),
    ],
)
def test_a_movement_carries_the_sign_of_its_kind(engine: Engine, kind: str, sign: str, sign_of_void: str) -> None:
    organization = add_organization(engine)
    reversed_kind = {"REFUND": "CAPTURE", "CHARGEBACK": "CAPTURE", "CHARGEBACK_REVERSAL": "CHARGEBACK"}.get(kind)
    capture = add_movement(engine, organization, 100, "2026-03-10T10:00")
    chargeback = add_movement(engine, organization, -100, "2026-03-10T10:00", kind="CHARGEBACK", reverses_id=capture)
    target = {"CAPTURE": capture, "CHARGEBACK": chargeback, None: None}[reversed_kind]
    free = {"commission_rate_bps": 0, "commission_tax_bps": 0, "reason": "r"} if kind in {"FEE", "MANUAL"} else {}
    values = {"kind": kind, **free}

    def signs_taken(**reversal: Any) -> set[str]:
        add = partial(add_movement, engine, organization, occurred_at="2026-03-11T10:00", **values, **reversal)
        against = {"+": objection(lambda: add(50)), "0": objection(lambda: add(0)), "-": objection(lambda: add(-50))}
        assert all("sign_check" in text or "opposite amount" in text for text in against.values() if text is not None)
        return {sign for sign, text in against.items() if text is None}

    assert signs_taken(reverses_id=target) == set(sign)
    voided = add_movement(engine, organization, int(f"{sign[0]}50"), "2026-03-11T10:00", reverses_id=target, **values)
    assert signs_taken(reverses_id=voided, is_void=True) == {sign_of_void}


@pytest.fixture
def reversible(engine: Engine) -> dict[str, int]:
    """Ids by name: organizations, and movements of the first that others may name in `reverses_id`."""
    organization = add_organization(engine)
    ids = {"organization": organization, "other": add_organization(engine)}
    ids["capture"] = add_movement(engine, organization, 100, "2026-03-10T10:00")
    ids["voided"] = add_movement(engine, organization, 100, "2026-03-10T10:00")
    ids["void"] = add_void(engine, ids["voided"])
    for name, kind in (("refund", "REFUND"), ("chargeback", "CHARGEBACK")):
        ids[name] = add_movement(engine, organization, -100, "2026-03-11T10:00", kind=kind, reverses_id=ids["capture"])
    return ids


REFUND = {"kind": "REFUND", "amount": -100, "reverses": "capture"}
VOID = {"kind": "CAPTURE", "amount": -100, "reverses": "capture", "is_void": True, "occurred_at": "2026-03-10T10:00"}


def reverse(engine: Engine, ids: Mapping[str, int], row: Mapping[str, Any]) -> None:
    values = {"organization": "organization", "occurred_at": "2026-03-20T10:00", **row}
    if "reverses" in values:
        values["reverses_id"] = ids[values.pop("reverses")]
    add_movement(engine, ids[values.pop("organization")], values.pop("amount"), values.pop("occurred_at"), **values)


UNFITTING = [
    (REFUND | {"organization": "other"}, "money_movement_reverses_fkey"),
    (REFUND | {"currency": "USD"}, "money_movement_reverses_fkey"),
    (REFUND | {"reverses": "refund"}, "must reverse a CAPTURE that is no void"),
    (REFUND | {"reverses": "void"}, "must reverse a CAPTURE that is no void"),
    (REFUND | {"commission_rate_bps": 900}, "must carry the commission rates"),
    (REFUND | {"commission_tax_bps": 1900}, "must carry the commission rates"),
    (REFUND | {"kind": "CHARGEBACK", "reverses": "chargeback"}, "must reverse a CAPTURE"),
    (REFUND | {"kind": "CHARGEBACK_REVERSAL", "amount": 100}, "must reverse a CHARGEBACK"),
    ({"kind": "TIP", "amount": -100}, "money_movement_kind_check"),
    ({"kind": "CAPTURE", "amount": 100, "commission_rate_bps": 10_001}, "money_movement_commission_rate_bps_check"),
    ({"kind": "CAPTURE", "amount": 100, "commission_tax_bps": -1}, "money_movement_commission_tax_bps_check"),
    ({"kind": "REFUND", "amount": -100}, "money_movement_reverses_check"),
    ({"kind": "CAPTURE", "amount": 100, "reverses": "capture"}, "money_movement_reverses_check"),
    ({"kind": "CAPTURE", "amount": -100, "is_void": True}, "money_movement_reverses_check"),
    ({"kind": "FEE", "amount": -100, "reason": "r"}, "money_movement_commission_free_check"),
    (
        {"kind": "MANUAL", "amount": 100, "commission_rate_bps": 0, "commission_tax_bps": 0},
        "money_movement_commission_free_check",
    ),
    (VOID | {"amount": -99}, "must carry the opposite amount and the same instant"),
    (VOID | {"occurred_at": "2026-03-10T10:00:00.000001"}, "must carry the opposite amount and the same instant"),
    (VOID | {"commission_rate_bps": 0}, "must carry the commission rates"),
    (VOID | {"kind": "REFUND", "amount": 100}, "must reverse a REFUND"),
    (VOID | {"kind": "CAPTURE", "reverses": "void"}, "must reverse a CAPTURE that is no void"),
    (VOID | {"reverses": "voided"}, "money_movement_voided_once"),
    (VOID | {"organization": "other"}, "money_movement_reverses_fkey"),
]
FITTING = [
    REFUND,
    REFUND | {"commission_rate_bps": 0, "commission_tax_bps": 0},
    {"kind": "CHARGEBACK_REVERSAL", "amount": 100, "reverses": "chargeback"},
    VOID,
]


def test_a_reversal_fits_what_it_reverses(engine: Engine, reversible: dict[str, int]) -> None:
    for row, reason in UNFITTING:
        assert reason in (objection(lambda row=row: reverse(engine, reversible, row)) or "taken"), row
    for row in FITTING:
        reverse(engine, reversible, row)


def test_money_is_in_a_known_currency(engine: Engine) -> None:
    organization = add_organization(engine)
    for code in ("XXX", "eur", "EU"):
        with pytest.raises(DBAPIError, match="money_movement_currency_fkey"):
            add_movement(engine, organization, 100, "2026-03-10T10:00", currency=code)
        with pytest.raises(DBAPIError, match="organization_currency_fkey"):
            add_organization(engine, currency=code)


def test_a_currency_keeps_its_exponent(engine: Engine) -> None:
    assert "never changes" in refusal(engine, "UPDATE currency SET exponent = 3 WHERE code = 'EUR'")
    assert execute(engine, "UPDATE currency SET payout_minimum = 100 WHERE code = 'EUR'") == 1


@pytest.mark.parametrize("occurred_at", ["infinity", "-infinity", "1970-01-01 23:59:59Z", "9998-12-31Z"])
def test_a_movement_lies_in_a_month_that_can_be_named(engine: Engine, occurred_at: str) -> None:
    movement = add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    copy = """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT 'copy', organization_id, kind, currency, amount, commission_rate_bps, commission_tax_bps,
            CAST(:occurred_at AS timestamptz)
        FROM money_movement WHERE id = :id
    """
    assert "money_movement_occurred_at_check" in refusal(engine, copy, occurred_at=occurred_at, id=movement)


def test_the_database_says_when_a_movement_was_recorded(engine: Engine) -> None:
    with engine.connect() as connection:
        before = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        connection.rollback()
        movement = add_movement(
            engine, add_organization(engine), 100, "2026-03-10T10:00", recorded_at=instant("2000-01-01")
        )
        row = connection.execute(
            text("SELECT recorded_at, clock_timestamp() AS after FROM money_movement WHERE id = :id"), {"id": movement}
        ).one()
    assert before < row.recorded_at < row.after


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("ledger_entry", "ledger_entry is append-only: correct it by an adjustment"),
        ("money_movement", "money_movement is append-only"),
        ("settlement_window", "settlement_window is fixed once a month is planned"),
    ],
)
def test_what_was_written_stays(engine: Engine, table: str, sentence: str) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    post(engine, organization_id=str(organization))
    execute(engine, f"INSERT INTO settlement_window VALUES ('2026-03-01', 'UTC', {STAMP}, '2026-07-01Z')")
    column = "timezone" if table == "settlement_window" else "currency"
    for statement in (
        f"UPDATE {table} SET {column} = {column}",
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
        f"TRUNCATE {table} CASCADE",
        f"WITH gone AS (DELETE FROM {table} RETURNING 1) SELECT count(*) FROM gone",
    ):
        assert sentence in refusal(engine, statement)


def test_an_imported_movement_goes_only_while_no_settlement_has_read_it(engine: Engine) -> None:
    organization = add_organization(engine)
    execute(engine, "INSERT INTO data_import (source) VALUES ('test')")
    delete = "DELETE FROM money_movement WHERE import_id = 1"
    add_movement(engine, organization, 100, "2026-03-10T10:00", import_id=1)
    begin_pass(engine)
    assert "nothing is deleted from money_movement while a settlement runs" in refusal(engine, delete)
    execute(engine, f"UPDATE settlement_pass SET state = 'DONE', planned_at = {STAMP}, finished_at = {STAMP}")
    assert execute(engine, delete) == 1
    later = add_movement(engine, organization, 100, "2026-03-10T10:00", import_id=1)
    execute(
        engine,
        "INSERT INTO settlement_window VALUES"
        " ('2026-03-01', 'Europe/Madrid', '2026-02-28 23:00Z', '2026-03-31 22:00Z')",
    )
    execute(engine, f"UPDATE settlement_period SET read_to = {later}")
    with engine.connect() as connection:
        assert connection.execute(text(delete)).rowcount == 1
        connection.rollback()
    execute(engine, f"UPDATE settlement_period SET read_to = {later + 1}")
    assert "only imported movements that no settlement has read may go" in refusal(engine, delete)


def test_an_id_is_drawn_and_not_chosen(engine: Engine) -> None:
    with pytest.raises(DBAPIError, match="cannot insert a non-DEFAULT value into column"):
        add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00", id=1)


@pytest.mark.parametrize("change", ["timezone = 'Asia/Tokyo'", "currency = 'JPY'"])
def test_zone_and_currency_are_fixed_by_the_first_movement(engine: Engine, change: str) -> None:
    organization = add_organization(engine)
    statement = f"UPDATE organization SET {change}"
    assert execute(engine, statement) == 1
    assert execute(engine, "UPDATE organization SET timezone = 'Europe/Madrid', currency = 'EUR'") == 1
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    assert "has movements: its time zone and currency cannot change" in refusal(engine, statement)
    assert execute(engine, "UPDATE organization SET name = 'n', timezone = timezone, currency = currency") == 1


def test_a_zone_that_does_not_exist_may_be_corrected_although_there_are_movements(engine: Engine) -> None:
    organization = add_organization(engine, timezone="Mars/Olympus_Mons")
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    assert "cannot change" in refusal(engine, "UPDATE organization SET currency = 'JPY'")
    assert execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo'") == 1
    assert "cannot change" in refusal(engine, "UPDATE organization SET timezone = 'Europe/Madrid'")


def test_an_organization_with_ledger_entries_is_never_deleted(engine: Engine) -> None:
    kept, idle = add_organization(engine), add_organization(engine)
    post(engine, organization_id=str(kept))
    assert "never deleted" in refusal(engine, "DELETE FROM organization")
    assert "append-only" in refusal(engine, "TRUNCATE organization CASCADE")
    assert execute(engine, "DELETE FROM organization WHERE id = :id", id=idle) == 1
