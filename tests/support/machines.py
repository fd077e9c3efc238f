"""The state machines of the tables: states, the steps between them, and what a row of each state holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from tests.support.sql_statements import STAMP, insertion, objection


@dataclass(frozen=True)
class Machine:
    """The states of a table: which moves are allowed, and which columns are filled in which states."""

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
