"""The wrong states that the schema makes impossible."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.payable import close_owing
from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.sql_statements import (
    LEDGER_ROW,
    STAMP,
    begin_month,
    begin_pass,
    execute,
    insertion,
    objection,
    post,
    refusal,
)
from ticketflow_orch.months import Month

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


@dataclass(frozen=True)
class Machine:
    """The states of a table: which moves are lawful, and which columns are filled in which states."""

    table: str
    lawful: set[tuple[str, str]]
    row: dict[str, str]
    filled: Mapping[str, set[str]] = field(default_factory=dict)
    column: str = "state"

    @property
    def states(self) -> list[str]:
        return sorted({state for move in self.lawful for state in move})

    def values(self, state: str) -> dict[str, str]:
        stamps = {column: STAMP if state in states else "NULL" for column, states in self.filled.items()}
        return {self.column: f"'{state}'", **stamps}

    def objection(self, connection: Connection, before: str, after: str) -> str | None:
        """What Postgres says against the move; None when it is taken."""
        changes = ", ".join(f"{column} = {value}" for column, value in self.values(after).items())
        row = connection.execute(text(f"{insertion(self.table, self.row | self.values(before))} RETURNING ctid")).one()
        update = text(f"UPDATE {self.table} SET {changes} WHERE ctid = :ctid")
        return objection(lambda: connection.execute(update, {"ctid": row.ctid}))


MACHINES = [
    Machine(
        "event",
        {("DRAFT", "OPEN"), ("DRAFT", "CANCELLED"), ("OPEN", "CLOSED"), ("OPEN", "CANCELLED")},
        {
            "external_ref": "'moving'", "organization_id": "(SELECT max(id) FROM organization)", "title": "'t'",
            "timezone": "'UTC'", "starts_at": "'2026-06-01Z'", "ends_at": "'2026-06-02Z'",
        },
        {"closed_at": {"CLOSED"}},
        column="status",
    ),
    Machine(
        "reservation",
        {("ACTIVE", "CONFIRMED"), ("ACTIVE", "EXPIRED"), ("ACTIVE", "CANCELLED"), ("CONFIRMED", "CANCELLED")},
        {
            "public_ref": "'moving'", "event_id": "(SELECT max(id) FROM event)", "buyer_email": "'b'",
            "quantity": "1", "created_at": STAMP, "expires_at": STAMP,
        },
        {"confirmed_at": {"CONFIRMED"}, "expired_at": {"EXPIRED"}},
        column="status",
    ),
    Machine(
        "settlement_period",
        {("OPEN", "SETTLED"), ("SETTLED", "CLOSING"), ("CLOSING", "SETTLED"), ("CLOSING", "CLOSED")},
        {"month": "'2026-03-01'"},
        {name: {"SETTLED", "CLOSING", "CLOSED"} for name in ("settled_at", "settled_by")}
        | {name: {"CLOSED"} for name in ("closed_at", "closed_by", "closed_role")},
    ),
    Machine(
        "settlement_pass",
        {("RUNNING", "DONE"), ("RUNNING", "GIVEN_UP")},
        {"month": "'2026-05-01'", "pass": "1", "cutoff": "1", "planned_at": STAMP},
        {"finished_at": {"DONE", "GIVEN_UP"}},
    ),
    Machine(
        "settlement_chunk",
        {("PLANNED", "DONE"), ("PLANNED", "FAILED")},
        {"month": "'2026-04-01'", "pass": "1", "origin_month": "'2026-04-01'", "low_id": "1"},
        {"finished_at": {"DONE", "FAILED"}, "error": {"FAILED"}},
    ),
    Machine(
        "outbox_event",
        {
            ("PENDING", "INFLIGHT"), ("PENDING", "HELD"), ("PENDING", "SUPPRESSED"), ("PENDING", "DEAD"),
            ("INFLIGHT", "PENDING"), ("INFLIGHT", "DELIVERED"), ("INFLIGHT", "DEAD"), ("INFLIGHT", "IN_DOUBT"),
            ("INFLIGHT", "SUPPRESSED"), ("INFLIGHT", "HELD"), ("DEAD", "PENDING"), ("HELD", "PENDING"),
            ("HELD", "SUPPRESSED"), ("IN_DOUBT", "PENDING"), ("IN_DOUBT", "DELIVERED"), ("IN_DOUBT", "DEAD"),
            ("IN_DOUBT", "SUPPRESSED"), ("DEAD", "SUPPRESSED"), ("DEAD", "DELIVERED"), ("SUPPRESSED", "PENDING"),
        },
        {
            "dedupe_key": "'moving'", "aggregate_type": "'a'", "aggregate_id": "'1'", "event_type": "'e'",
            "payload": "'{}'", "occurred_at": STAMP,
        },
        {
            "lease_until": {"INFLIGHT"}, "owner": {"INFLIGHT"}, "available_at": {"PENDING", "INFLIGHT"},
            "ended_at": {"DELIVERED", "SUPPRESSED"},
        },
    ),
    Machine(
        "payout",
        {
            ("HELD", "REQUESTED"), ("HELD", "REJECTED"), ("REQUESTED", "HELD"), ("REQUESTED", "CONFIRMED"),
            ("REQUESTED", "REJECTED"), ("REQUESTED", "IN_DOUBT"), ("IN_DOUBT", "CONFIRMED"), ("IN_DOUBT", "REJECTED"),
            ("IN_DOUBT", "REQUESTED"), ("CONFIRMED", "RETURNED"),
        },
        {
            "organization_id": "(SELECT max(id) FROM organization)", "currency": "'EUR'", "month": "'2026-02-01'",
            "amount": "1",
        },
        {"answered_at": {"CONFIRMED", "REJECTED", "RETURNED"}},
    ),
    Machine(
        "job_execution",
        {("PROCESSING", "COMPLETED"), ("PROCESSING", "FAILED"), ("FAILED", "PROCESSING")},
        {"job": "'j'", "idempotency_key": "'k'", "owner": "'o'"},
        {"lease_until": {"PROCESSING"}, "finished_at": {"COMPLETED", "FAILED"}},
    ),
]  # fmt: skip


def machine_of(table: str) -> Machine:
    return next(machine for machine in MACHINES if machine.table == table)


@pytest.fixture
def surrounded(engine: Engine) -> Engine:
    """A database with what the machines' rows refer to."""
    organization = add_organization(engine)
    add_event(engine, organization)
    close_owing(engine, {organization: 1}, Month(2026, 2))
    begin_pass(engine, "2026-04-01")
    begin_month(engine, "2026-05-01")
    return engine


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


# --- Rows that cannot be

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
