"""Written when books are closed: balances, payouts, and who was mailed a statement."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, UniqueConstraint, text

from ticketflow_orch.schema.columns import (
    column,
    count,
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

opening_balance = table(
    "opening_balance",
    identity(),
    reference("organization_id", "organization.id"),
    column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    column("amount", sa.BigInteger, CheckConstraint("amount <> 0")),
    month("balance_month", nullable=True),
    reference("import_id", "data_import.id", nullable=True),
    UniqueConstraint("organization_id", "currency"),
)

organization_balance = table(
    "organization_balance",
    column("organization_id", sa.BigInteger),
    column("currency", sa.CHAR(3)),
    month(),
    month("previous_month", CheckConstraint("previous_month < month"), nullable=True),
    *(column(name, sa.BigInteger) for name in ("opening", "net")),
    column("returned", sa.BigInteger, CheckConstraint("returned >= 0")),
    column("due", sa.BigInteger),
    column("payable", sa.BigInteger, CheckConstraint("payable >= 0 AND payable IN (0, due)")),
    column("closing", sa.BigInteger),
    count("settled_elsewhere"),
    column("payouts_from", sa.Date, nullable=True),
    column("knows_history", sa.Boolean, server_default=text("false")),
    sa.PrimaryKeyConstraint("organization_id", "month", "currency", name="organization_balance_pkey"),
    CheckConstraint("due = opening + net + returned - settled_elsewhere", name="organization_balance_due_check"),
    CheckConstraint(
        "payable = 0 OR NOT knows_history OR (payouts_from IS NOT NULL AND month >= payouts_from)",
        name="organization_balance_payouts_from_check",
    ),
    CheckConstraint("closing = due - payable", name="organization_balance_closing_check"),
    index(
        "organization_balance_month_idx",
        "month",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
    index("organization_balance_carry_idx", "organization_id", "currency", "month", where="closing <> 0"),
)

payout = table(
    "payout",
    identity(always=True),
    column("public_id", sa.Uuid, unique=True),
    reference("organization_id", "organization.id"),
    column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    month(),
    column("amount", sa.BigInteger, CheckConstraint("amount > 0")),
    text_column("state"),
    *(text_column(name, nullable=True) for name in ("reason", "provider_ref")),
    stamp("created_at"),
    *(instant(name, nullable=True) for name in ("first_attempt_at", "answered_at")),
    month("returned_month", nullable=True),
    *(text_column(name, nullable=True) for name in ("decided_by", "run_id")),
    column("anomalies_to", sa.BigInteger, nullable=True),
    one_of("state", "HELD", "REQUESTED", "CONFIRMED", "REJECTED", "RETURNED", "IN_DOUBT"),
    CheckConstraint("answered_at IS NOT NULL OR state NOT IN ('CONFIRMED', 'REJECTED', 'RETURNED')"),
    CheckConstraint("returned_month IS NULL OR state IN ('REJECTED', 'RETURNED')"),
    UniqueConstraint("organization_id", "currency", "month"),
    index(
        "payout_to_return_idx",
        "organization_id",
        "currency",
        where="state IN ('REJECTED', 'RETURNED') AND returned_month IS NULL",
    ),
    index("payout_provider_ref_idx", "provider_ref", where="state = 'CONFIRMED'"),
    index("payout_waiting_idx", "month", "state", where="state IN ('HELD', 'REQUESTED', 'IN_DOUBT')"),
    index(
        "payout_month_idx",
        "month",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
)

statement_mail = table(
    "statement_mail",
    Column("organization_id", sa.BigInteger, ForeignKey("organization.id"), primary_key=True, autoincrement=False),
    Column("currency", sa.CHAR(3), ForeignKey("currency.code"), primary_key=True),
    month(primary_key=True),
    column("outbox_event_id", sa.Uuid),
    stamp("created_at"),
)
