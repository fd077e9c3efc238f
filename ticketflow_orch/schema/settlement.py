"""Written by the settlement."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint
from sqlalchemy.dialects.postgresql import ARRAY

from ticketflow_orch.schema.columns import (
    AMOUNTS,
    column,
    count,
    exactly_when,
    identity,
    index,
    instant,
    month,
    one_of,
    reference,
    stamp,
    table,
    text_column,
)

settlement_period = table(
    "settlement_period",
    month(primary_key=True),
    text_column("state", server_default="OPEN"),
    instant("settled_at", nullable=True),
    text_column("settled_by", nullable=True),
    instant("closed_at", nullable=True),
    text_column("closed_by", nullable=True),
    *(text_column(name, nullable=True) for name in ("closed_role", "closed_run_id")),
    *(instant(name, nullable=True) for name in ("paid_at", "stated_at")),
    column("read_to", sa.BigInteger, nullable=True),
    one_of("state", "OPEN", "SETTLED", "CLOSING", "CLOSED"),
    *(exactly_when(name, "state <> 'OPEN'") for name in ("settled_at", "settled_by")),
    *(exactly_when(name, "state = 'CLOSED'") for name in ("closed_at", "closed_by", "closed_role")),
    *(CheckConstraint(f"{name} IS NULL OR state = 'CLOSED'") for name in ("paid_at", "stated_at")),
)

settlement_window = table(
    "settlement_window",
    month(primary_key=True),
    text_column("timezone", primary_key=True),
    instant("starts_at"),
    instant("ends_at"),
    CheckConstraint("ends_at > starts_at"),
)

settlement_pass = table(
    "settlement_pass",
    month("month", ForeignKey("settlement_period.month"), primary_key=True),
    Column("pass", sa.Integer, CheckConstraint("pass >= 1"), primary_key=True),
    stamp("cutoff_at"),
    text_column("state", server_default="RUNNING"),
    instant("planned_at", nullable=True),
    stamp("started_at"),
    instant("finished_at", nullable=True),
    column("cutoff", sa.BigInteger),
    instant("recorded_before", nullable=True),
    month("closed_through", nullable=True),
    column("is_full", sa.Boolean, server_default=sa.text("false")),
    text_column("given_up_because", nullable=True),
    one_of("state", "RUNNING", "DONE", "GIVEN_UP"),
    exactly_when("finished_at", "state <> 'RUNNING'"),
    CheckConstraint("state = 'RUNNING' OR planned_at IS NOT NULL"),
    index("settlement_pass_one_running", "month", unique=True, where="state = 'RUNNING'"),
)

settlement_chunk = table(
    "settlement_chunk",
    month(primary_key=True),
    Column("pass", sa.Integer, primary_key=True),
    month("origin_month", primary_key=True),
    Column("low_id", sa.BigInteger, primary_key=True),
    column("high_id", sa.BigInteger, nullable=True),
    text_column("state", server_default="PLANNED"),
    *(count(name) for name in ("rows_new", "rows_existing", "rows_adjusted")),
    text_column("error", nullable=True),
    text_column("worker", nullable=True),
    instant("finished_at", nullable=True),
    column("organizations", ARRAY(sa.BigInteger), nullable=True),
    CheckConstraint("origin_month <= month"),
    CheckConstraint("high_id >= low_id"),
    CheckConstraint("high_id IS NOT NULL OR organizations IS NULL", name="settlement_chunk_listed_check"),
    one_of("state", "PLANNED", "DONE", "FAILED"),
    exactly_when("error", "state = 'FAILED'"),
    exactly_when("finished_at", "state <> 'PLANNED'"),
    ForeignKeyConstraint(["month", "pass"], ["settlement_pass.month", "settlement_pass.pass"]),
    index("settlement_chunk_planned_idx", "month", "pass", "origin_month", "low_id", where="state = 'PLANNED'"),
)

organization_left_out = table(
    "organization_left_out",
    month("month", ForeignKey("settlement_period.month"), primary_key=True),
    Column("organization_id", sa.BigInteger, ForeignKey("organization.id"), primary_key=True),
)

parked_organization = table(
    "parked_organization",
    identity(always=True),
    reference("organization_id", "organization.id"),
    month(),
    text_column("error", nullable=True),
    text_column("reason", nullable=True),
    stamp("since"),
    instant("resolved_at", nullable=True),
    *(text_column(name, nullable=True) for name in ("parked_by", "resolved_by")),
    CheckConstraint("num_nonnulls(error, reason) = 1"),
    CheckConstraint("parked_by IS NULL OR reason IS NOT NULL"),
    CheckConstraint("resolved_by IS NULL OR resolved_at IS NOT NULL"),
    index(
        "parked_organization_unresolved",
        "organization_id",
        "month",
        unique=True,
        where="resolved_at IS NULL AND error IS NOT NULL",
    ),
    index(
        "parked_organization_by_hand",
        "organization_id",
        unique=True,
        where="resolved_at IS NULL AND reason IS NOT NULL",
    ),
)

ledger_entry = table(
    "ledger_entry",
    column("organization_id", sa.BigInteger),
    month(),
    column("currency", sa.CHAR(3)),
    month("origin_month"),
    *(column(name, sa.BigInteger) for name in AMOUNTS),
    text_column("reason", nullable=True),
    column("settlement_pass", sa.Integer),
    stamp("posted_at"),
    text_column("run_id", nullable=True),
    count("sequence", sa.Integer),
    sa.PrimaryKeyConstraint(
        "month", "organization_id", "currency", "origin_month", "sequence", name="ledger_entry_pkey"
    ),
    CheckConstraint("origin_month <= month", name="ledger_entry_origin_month_check"),
    CheckConstraint(
        "net = captures + refunds + chargebacks + fees - commission - commission_tax", name="ledger_entry_net_check"
    ),
    CheckConstraint("sequence IS NOT NULL AND sequence >= 0", name="ledger_entry_sequence_check"),
    index(
        "ledger_entry_month_idx",
        "month",
        "origin_month",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
)

settlement_total = table(
    "settlement_total",
    month("month", ForeignKey("settlement_period.month"), primary_key=True),
    Column("currency", sa.CHAR(3), ForeignKey("currency.code"), primary_key=True),
    column("organizations", sa.BigInteger),
    *(column(name, sa.Numeric) for name in AMOUNTS),
)
