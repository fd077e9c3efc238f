"""Written by the application, or by an import on its behalf, and read here. `currency` comes with the migrations.

An organization's currency from a month on is what people decide, by `ticketflow currency replace`.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, UniqueConstraint, text

from ticketflow_orch.schema.columns import (
    column,
    count,
    exactly_when,
    identity,
    index,
    instant,
    month,
    one_of,
    rate,
    reference,
    stamp,
    table,
    text_column,
    within_calendars,
)

currency = table(
    "currency",
    Column("code", sa.CHAR(3), CheckConstraint("code ~ '^[A-Z]{3}$'"), primary_key=True),
    column("exponent", sa.SmallInteger, CheckConstraint("exponent BETWEEN 0 AND 4")),
    count("payout_minimum", sa.BigInteger, CheckConstraint("payout_minimum >= 0")),
    *(column(name, sa.Date, nullable=True) for name in ("first_day", "last_day")),
    CheckConstraint("last_day >= first_day", name="currency_days_check"),
)

data_import = table(
    "data_import",
    identity(always=True),
    text_column("source"),
    stamp("imported_at"),
    instant("undone_at", nullable=True),
    *(count(name) for name in ("organizations", "events", "reservations", "money_movements", "opening_balances")),
)

organization = table(
    "organization",
    identity(),
    text_column("external_ref", unique=True),
    text_column("name"),
    text_column("timezone"),
    column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    *(rate(name) for name in ("commission_rate_bps", "commission_tax_bps")),
    column("joined_on", sa.Date),
    column("left_on", sa.Date, CheckConstraint("left_on >= joined_on"), nullable=True),
    text_column("contact_email", nullable=True),
    text_column("locale", nullable=True),
    reference("import_id", "data_import.id", nullable=True),
    column(
        "payouts_from",
        sa.Date,
        CheckConstraint(
            "payouts_from >= '1970-01-01' AND payouts_from < '9999-01-01' AND extract(day FROM payouts_from) = 1",
            name="organization_payouts_from_check",
        ),
        nullable=True,
    ),
    within_calendars("organization_days_check", sa.Date, "joined_on", "left_on"),
    index("organization_timezone_idx", "timezone"),
    index("organization_payouts_from_idx", "payouts_from", where="payouts_from IS NOT NULL"),
    index("organization_by_currency_idx", "currency"),
)

# The currency from a month on, where it is not the organization's first; of several rows about one month the last.
organization_currency = table(
    "organization_currency",
    column("id", sa.BigInteger, sa.Identity(always=True)),
    reference("organization_id", "organization.id"),
    month("from_month"),
    column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    text_column("decided_by"),
    stamp("decided_at"),
    sa.PrimaryKeyConstraint("organization_id", "from_month", "id"),
)

event = table(
    "event",
    identity(),
    column("public_id", sa.Uuid, unique=True, server_default=text("gen_random_uuid()")),
    text_column("external_ref", unique=True),
    reference("organization_id", "organization.id"),
    text_column("title"),
    text_column("status"),
    instant("starts_at"),
    instant("ends_at"),
    text_column("timezone"),
    instant("closed_at", nullable=True),
    reference("import_id", "data_import.id", nullable=True),
    text_column("venue", nullable=True),
    one_of("status", "DRAFT", "OPEN", "CLOSED", "CANCELLED"),
    CheckConstraint("ends_at > starts_at"),
    exactly_when("closed_at", "status = 'CLOSED'"),
    within_calendars("event_instants_check", sa.TIMESTAMP, "starts_at", "ends_at", "closed_at"),
    index("event_organization_id_idx", "organization_id"),
    index("event_open_ends_at_idx", "ends_at", "id", where="status = 'OPEN'"),
    index("event_starts_at_idx", "starts_at", "id", where="status IN ('OPEN', 'CLOSED')"),
)

reservation = table(
    "reservation",
    identity(),
    text_column("public_ref", unique=True),
    reference("event_id", "event.id"),
    text_column("buyer_email"),
    column("quantity", sa.Integer, CheckConstraint("quantity > 0")),
    text_column("status"),
    instant("created_at"),
    instant("expires_at"),
    *(
        instant(name, nullable=True)
        for name in ("payment_started_at", "confirmed_at", "expired_at", "stuck_reported_at")
    ),
    reference("import_id", "data_import.id", nullable=True),
    text_column("expired_by", nullable=True),
    instant("cancelled_at", nullable=True),
    one_of("status", "ACTIVE", "CONFIRMED", "EXPIRED", "CANCELLED"),
    CheckConstraint("confirmed_at IS NOT NULL OR status <> 'CONFIRMED'"),
    exactly_when("expired_at", "status = 'EXPIRED'"),
    within_calendars(
        "reservation_instants_check",
        sa.TIMESTAMP,
        "created_at",
        "expires_at",
        "payment_started_at",
        "confirmed_at",
        "expired_at",
        "stuck_reported_at",
        "cancelled_at",
    ),
    index("reservation_event_id_idx", "event_id"),
    index("reservation_due_idx", "expires_at", "id", where="status = 'ACTIVE' AND stuck_reported_at IS NULL"),
    index("reservation_stuck_idx", "id", where="status = 'ACTIVE' AND stuck_reported_at IS NOT NULL"),
    index("reservation_to_remind_idx", "event_id", "id", where="status = 'CONFIRMED'"),
)

money_movement = table(
    "money_movement",
    identity(always=True),
    text_column("external_ref", unique=True),
    reference("organization_id", "organization.id"),
    reference("reservation_id", "reservation.id", nullable=True),
    text_column("kind"),
    column("is_void", sa.Boolean, server_default=text("false")),
    column("reverses_id", sa.BigInteger, nullable=True),
    column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    column("amount", sa.BigInteger),
    *(rate(name) for name in ("commission_rate_bps", "commission_tax_bps")),
    text_column("reason", nullable=True),
    instant("occurred_at"),
    stamp("recorded_at"),
    reference("import_id", "data_import.id", nullable=True),
    one_of("kind", "CAPTURE", "REFUND", "CHARGEBACK", "CHARGEBACK_REVERSAL", "FEE", "MANUAL"),
    CheckConstraint("occurred_at >= '1970-01-02Z' AND occurred_at < '9998-12-31Z'"),
    CheckConstraint(
        """amount <> 0 AND CASE kind
            WHEN 'MANUAL' THEN true
            WHEN 'CAPTURE' THEN (amount > 0) <> is_void
            WHEN 'CHARGEBACK_REVERSAL' THEN (amount > 0) <> is_void
            ELSE (amount < 0) <> is_void
        END""",
        name="money_movement_sign_check",
    ),
    CheckConstraint(
        "(reverses_id IS NOT NULL) = (is_void OR kind IN ('REFUND', 'CHARGEBACK', 'CHARGEBACK_REVERSAL'))",
        name="money_movement_reverses_check",
    ),
    CheckConstraint(
        "kind NOT IN ('FEE', 'MANUAL') OR (commission_rate_bps = 0 AND commission_tax_bps = 0 AND reason IS NOT NULL)",
        name="money_movement_commission_free_check",
    ),
    UniqueConstraint("id", "organization_id", "currency", name="money_movement_reversal_target"),
    ForeignKeyConstraint(
        ["reverses_id", "organization_id", "currency"],
        ["money_movement.id", "money_movement.organization_id", "money_movement.currency"],
        name="money_movement_reverses_fkey",
    ),
    index(
        "money_movement_settlement_idx",
        "organization_id",
        "occurred_at",
        postgresql_include=["currency", "kind", "amount", "commission_rate_bps", "commission_tax_bps", "id"],
    ),
    index("money_movement_order_idx", "id", "occurred_at", postgresql_using="brin"),
    index("money_movement_reservation_id_idx", "reservation_id", where="reservation_id IS NOT NULL"),
    index("money_movement_reverses_id_idx", "reverses_id", where="reverses_id IS NOT NULL"),
    index("money_movement_voided_once", "reverses_id", unique=True, where="is_void"),
)
