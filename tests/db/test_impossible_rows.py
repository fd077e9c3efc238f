"""Rows that cannot be are refused: impossible values, second copies, postings and reservations out of place."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tests.support.machines import machine_of
from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.sql_statements import (
    LEDGER_ROW,
    STAMP,
    begin_month,
    execute,
    insertion,
    post,
    refusal,
)

pytestmark = pytest.mark.every_server


ORGANIZATION = {
    "external_ref": "'o'", "name": "'o'", "timezone": "'UTC'", "currency": "'EUR'", "commission_rate_bps": "0",
    "commission_tax_bps": "0", "joined_on": "'2020-01-01'",
}  # fmt: skip
PARKED = {"organization_id": "(SELECT max(id) FROM organization)", "month": "'2026-04-01'", "error": "'e'"}
OPENING = {"organization_id": "(SELECT max(id) FROM organization)", "currency": "'EUR'", "amount": "1"}
BALANCE = {
    "organization_id": "1", "currency": "'EUR'", "month": "'2026-04-01'", "opening": "0", "net": "100",
    "returned": "0", "due": "100", "payable": "100", "closing": "0",
}  # fmt: skip
WINDOW = {"month": "'2026-04-01'", "timezone": "'UTC'", "starts_at": STAMP, "ends_at": "'2026-07-01Z'"}
FIRING = {"job": "'j'", "scheduled_for": STAMP, "host": "'h'", "pid": "1", "run_id": "'r'", "outcome": "'ACCEPTED'"}
REMINDER = {
    "reservation_id": "(SELECT max(id) FROM reservation)", "kind": "'k'", "event_date": "'2026-06-01'",
    "state": "'SKIPPED'",
}  # fmt: skip
IMPOSSIBLE: list[tuple[str, dict[str, str], str]] = [
    ("currency", {"code": "'eur'", "exponent": "2"}, "currency_code_check"),
    ("currency", {"code": "'AAA'", "exponent": "5"}, "currency_exponent_check"),
    ("currency", {"code": "'AAA'", "exponent": "2", "payout_minimum": "-1"}, "currency_payout_minimum_check"),
    ("organization", ORGANIZATION | {"commission_rate_bps": "10001"}, "organization_commission_rate_bps_check"),
    ("organization", ORGANIZATION | {"commission_tax_bps": "-1"}, "organization_commission_tax_bps_check"),
    ("organization", ORGANIZATION | {"left_on": "'2019-12-31'"}, "organization_check"),
    ("parked_organization", PARKED | {"reason": "'r'"}, "parked_organization_check"),
    ("parked_organization", PARKED | {"error": "NULL"}, "parked_organization_check"),
    ("parked_organization", PARKED | {"parked_by": "'a'"}, "parked_organization_check"),
    ("parked_organization", PARKED | {"resolved_by": "'a'"}, "parked_organization_check"),
    ("opening_balance", OPENING | {"amount": "0"}, "opening_balance_amount_check"),
    ("organization_balance", BALANCE | {"opening": "1"}, "organization_balance_due_check"),
    ("organization_balance", BALANCE | {"closing": "1"}, "organization_balance_closing_check"),
    ("organization_balance", BALANCE | {"payable": "50", "closing": "50"}, "organization_balance_check"),
    (
        "organization_balance",
        BALANCE | {"returned": "-1", "due": "99", "payable": "99"},
        "organization_balance_returned_check",
    ),
    ("organization_balance", BALANCE | {"previous_month": "'2026-04-01'"}, "organization_balance_check"),
    ("settlement_window", WINDOW | {"ends_at": STAMP}, "settlement_window_check"),
    ("job_firing", FIRING | {"outcome": "'LOST'"}, "job_firing_outcome_check"),
    ("reminder", REMINDER | {"state": "'LOST'"}, "reminder_state_check"),
    ("reminder", REMINDER | {"state": "'QUEUED'"}, "reminder_check"),
    *(
        (table, machine_of(table).row | machine_of(table).values(state) | wrong, constraint)
        for table, state, wrong, constraint in [
            ("event", "OPEN", {"ends_at": "'2026-06-01Z'"}, "event_check"),
            ("reservation", "ACTIVE", {"quantity": "0"}, "reservation_quantity_check"),
            ("settlement_pass", "RUNNING", {"pass": "0"}, "settlement_pass_pass_check"),
            ("settlement_pass", "DONE", {"planned_at": "NULL"}, "settlement_pass_check"),
            ("settlement_chunk", "PLANNED", {"origin_month": "'2026-05-01'"}, "settlement_chunk_check"),
            ("settlement_chunk", "PLANNED", {"high_id": "0"}, "settlement_chunk_check"),
            ("outbox_event", "PENDING", {"attempts": "-1"}, "outbox_event_attempts_check"),
            ("job_execution", "PROCESSING", {"attempt": "0"}, "job_execution_attempt_check"),
        ]
    ),
]


def test_rows_that_cannot_be_are_refused(surrounded: Engine) -> None:
    add_reservation(surrounded, add_event(surrounded, add_organization(surrounded)))
    for table, row, constraint in IMPOSSIBLE:
        against = refusal(surrounded, insertion(table, row))
        assert re.search(rf'violates check constraint "{constraint}\d*"', against), (row, against)


def test_what_happens_once_is_written_once(surrounded: Engine) -> None:
    add_reservation(surrounded, add_event(surrounded, add_organization(surrounded)))
    for table, row in (
        ("parked_organization", PARKED),
        ("settlement_window", WINDOW),
        ("reminder", REMINDER),
        ("opening_balance", OPENING),
    ):
        execute(surrounded, insertion(table, row))
        assert "violates unique constraint" in refusal(surrounded, insertion(table, row))
    execute(surrounded, f"UPDATE parked_organization SET resolved_at = {STAMP}")
    execute(surrounded, insertion("parked_organization", PARKED))


# --- The ledger


@pytest.mark.parametrize("column", ["organization_id", "month", "currency", "origin_month", "sequence"])
def test_no_part_of_the_ledger_key_is_missing(engine: Engine, column: str) -> None:
    row = LEDGER_ROW | {column: "NULL"}
    assert f'null value in column "{column}"' in refusal(engine, insertion("ledger_entry", row))


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ({}, "ledger_entry_pkey"),
        ({"net": "89", "sequence": "1"}, "ledger_entry_net_check"),
        ({"origin_month": "'2026-04-01'"}, "ledger_entry_origin_month_check"),
        ({"sequence": "-1"}, "ledger_entry_sequence_check"),
    ],
)
def test_a_ledger_row_adds_up_and_comes_once(engine: Engine, values: dict[str, str], constraint: str) -> None:
    post(engine)
    assert constraint in refusal(engine, insertion("ledger_entry", LEDGER_ROW | values))


def test_nothing_is_posted_into_a_month_that_is_closed_or_not_begun(engine: Engine) -> None:
    posting = insertion("ledger_entry", LEDGER_ROW)
    assert "month 2026-03 is not begun" in refusal(engine, posting)
    machine = machine_of("settlement_period")
    execute(engine, insertion(machine.table, machine.row | machine.values("CLOSED")))
    assert "month 2026-03 is closed: post the adjustment in the first month that is not" in refusal(engine, posting)
    adjustment = {"month": "'2026-04-01'", "organization_id": "2"}
    begin_month(engine, "2026-04-01")
    both = f"{insertion('ledger_entry', LEDGER_ROW | adjustment)}, ({', '.join(LEDGER_ROW.values())})"
    assert "month 2026-03 is closed" in refusal(engine, both)
    assert execute(engine, insertion("ledger_entry", LEDGER_ROW | adjustment)) == 1


# --- Reservations


@pytest.mark.parametrize("status", ["DRAFT", "CLOSED", "CANCELLED"])
def test_only_an_open_event_takes_reservations(engine: Engine, status: str) -> None:
    closed_at = instant("2026-06-02") if status == "CLOSED" else None
    organization = add_organization(engine)
    event = add_event(engine, organization, status=status, closed_at=closed_at)
    with pytest.raises(DBAPIError, match=f"is refused: event {event} is not open"):
        add_reservation(engine, event)
    reservation = add_reservation(engine, add_event(engine, organization))
    move = "UPDATE reservation SET event_id = :event WHERE id = :id"
    assert f"event {event} is not open" in refusal(engine, move, event=event, id=reservation)


def test_an_import_may_bring_the_past_of_an_event_but_no_active_reservation(engine: Engine) -> None:
    execute(engine, "INSERT INTO data_import (source) VALUES ('test')")
    event = add_event(engine, add_organization(engine), status="CLOSED", closed_at=instant("2026-06-02"))
    add_reservation(engine, event, status="CONFIRMED", confirmed_at=instant("2026-05-01"), import_id=1)
    with pytest.raises(DBAPIError, match="is not open"):
        add_reservation(engine, event, import_id=1)
