"""The tables as Python names them: what the migrations build, to the last check and index; a test compares both.

The database is built by the migrations alone; nothing here creates anything. Money is minor units of its currency,
an instant is an aware UTC datetime, a month is the date of its first day.
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, Index, Table, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import DOMAIN, JSONB
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

metadata = sa.MetaData()

_MONTH = DOMAIN("month_start", sa.Date, check="isfinite(VALUE) AND extract(day FROM VALUE) = 1", metadata=metadata)
_AMOUNTS = ("captures", "refunds", "chargebacks", "fees", "commission", "commission_tax", "net")


class _Options(TypedDict, total=False):
    nullable: bool
    primary_key: bool
    unique: bool
    server_default: sa.TextClause | str


def _column(
    name: str, type_: type[TypeEngine[Any]] | TypeEngine[Any], *rest: SchemaItem, **options: Unpack[_Options]
) -> Column[Any]:
    return Column(name, type_, *rest, **_Options(nullable=False) | options)


def _id(*, always: bool = False) -> Column[Any]:
    return _column("id", sa.BigInteger, sa.Identity(always=always), primary_key=True)


def _text(name: str, **options: Unpack[_Options]) -> Column[Any]:
    return _column(name, sa.Text, **options)


def _instant(name: str, **options: Unpack[_Options]) -> Column[Any]:
    return _column(name, sa.TIMESTAMP(timezone=True), **options)


def _stamp(name: str) -> Column[Any]:
    return _instant(name, server_default=text("clock_timestamp()"))


def _month(name: str = "month", *rest: SchemaItem, **options: Unpack[_Options]) -> Column[Any]:
    return _column(name, _MONTH, *rest, **options)


def _reference(name: str, target: str, **options: Unpack[_Options]) -> Column[Any]:
    return _column(name, sa.BigInteger, ForeignKey(target), **options)


def _count(name: str, type_: type[TypeEngine[Any]] = sa.BigInteger, *rest: SchemaItem) -> Column[Any]:
    return _column(name, type_, *rest, server_default=text("0"))


def _rate(name: str) -> Column[Any]:
    return _column(name, sa.Integer, CheckConstraint(f"{name} BETWEEN 0 AND 10000"))


def _one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})")


def _exactly_when(column: str, condition: str) -> CheckConstraint:
    return CheckConstraint(f"({column} IS NOT NULL) = ({condition})")


def _index(name: str, *columns: str, where: str | None = None, unique: bool = False, **options: Any) -> Index:  # noqa: ANN401
    predicate = None if where is None else text(where)
    return Index(name, *columns, unique=unique, postgresql_where=predicate, **options)


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items)


# --- Written by the application (or by an import on its behalf), read here. `currency` comes with the migrations.

currency = _table(
    "currency",
    Column("code", sa.CHAR(3), CheckConstraint("code ~ '^[A-Z]{3}$'"), primary_key=True),
    _column("exponent", sa.SmallInteger, CheckConstraint("exponent BETWEEN 0 AND 4")),
    _count("payout_minimum", sa.BigInteger, CheckConstraint("payout_minimum >= 0")),
)

data_import = _table(
    "data_import",
    _id(always=True),
    _text("source"),
    _stamp("imported_at"),
    _instant("undone_at", nullable=True),
    *(_count(name) for name in ("organizations", "events", "reservations", "money_movements")),
)

organization = _table(
    "organization",
    _id(),
    _text("external_ref", unique=True),
    _text("name"),
    _text("timezone"),
    _column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    *(_rate(name) for name in ("commission_rate_bps", "commission_tax_bps")),
    _column("joined_on", sa.Date),
    _column("left_on", sa.Date, CheckConstraint("left_on >= joined_on"), nullable=True),
    _text("contact_email", nullable=True),
    _text("locale", nullable=True),
    _reference("import_id", "data_import.id", nullable=True),
    _index("organization_timezone_idx", "timezone"),
)

event = _table(
    "event",
    _id(),
    _column("public_id", sa.Uuid, unique=True, server_default=text("gen_random_uuid()")),
    _text("external_ref", unique=True),
    _reference("organization_id", "organization.id"),
    _text("title"),
    _text("status"),
    _instant("starts_at"),
    _instant("ends_at"),
    _text("timezone"),
    _instant("closed_at", nullable=True),
    _reference("import_id", "data_import.id", nullable=True),
    _one_of("status", "DRAFT", "OPEN", "CLOSED", "CANCELLED"),
    CheckConstraint("ends_at > starts_at"),
    _exactly_when("closed_at", "status = 'CLOSED'"),
    _index("event_organization_id_idx", "organization_id"),
    _index("event_open_ends_at_idx", "ends_at", where="status = 'OPEN'"),
    _index("event_open_starts_at_idx", "starts_at", where="status = 'OPEN'"),
)

reservation = _table(
    "reservation",
    _id(),
    _text("public_ref", unique=True),
    _reference("event_id", "event.id"),
    _text("buyer_email"),
    _column("quantity", sa.Integer, CheckConstraint("quantity > 0")),
    _text("status"),
    _instant("created_at"),
    _instant("expires_at"),
    *(
        _instant(name, nullable=True)
        for name in ("payment_started_at", "confirmed_at", "expired_at", "stuck_reported_at")
    ),
    _reference("import_id", "data_import.id", nullable=True),
    _one_of("status", "ACTIVE", "CONFIRMED", "EXPIRED", "CANCELLED"),
    CheckConstraint("confirmed_at IS NOT NULL OR status <> 'CONFIRMED'"),
    _exactly_when("expired_at", "status = 'EXPIRED'"),
    _index("reservation_event_id_idx", "event_id"),
    _index("reservation_active_expires_at_idx", "expires_at", where="status = 'ACTIVE'"),
)

money_movement = _table(
    "money_movement",
    _id(),
    _text("external_ref", unique=True),
    _reference("organization_id", "organization.id"),
    _reference("reservation_id", "reservation.id", nullable=True),
    _text("kind"),
    _column("is_void", sa.Boolean, server_default=text("false")),
    _column("reverses_id", sa.BigInteger, nullable=True),
    _column("currency", sa.CHAR(3), ForeignKey("currency.code")),
    _column("amount", sa.BigInteger),
    *(_rate(name) for name in ("commission_rate_bps", "commission_tax_bps")),
    _text("reason", nullable=True),
    _instant("occurred_at"),
    _stamp("recorded_at"),
    _reference("import_id", "data_import.id", nullable=True),
    _one_of("kind", "CAPTURE", "REFUND", "CHARGEBACK", "CHARGEBACK_REVERSAL", "FEE", "MANUAL"),
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
    _index(
        "money_movement_settlement_idx",
        "organization_id",
        "occurred_at",
        postgresql_include=["currency", "kind", "amount", "commission_rate_bps", "commission_tax_bps", "recorded_at"],
    ),
    _index("money_movement_instants_idx", "recorded_at", "occurred_at", postgresql_using="brin"),
    _index("money_movement_reservation_id_idx", "reservation_id", where="reservation_id IS NOT NULL"),
    _index("money_movement_reverses_id_idx", "reverses_id", where="reverses_id IS NOT NULL"),
    _index("money_movement_voided_once", "reverses_id", unique=True, where="is_void"),
)

# --- Written by the settlement.

settlement_period = _table(
    "settlement_period",
    _month(primary_key=True),
    _text("state", server_default="OPEN"),
    _instant("settled_at", nullable=True),
    _text("settled_by", nullable=True),
    _instant("closed_at", nullable=True),
    _text("closed_by", nullable=True),
    _one_of("state", "OPEN", "SETTLED", "CLOSED"),
    *(_exactly_when(name, "state <> 'OPEN'") for name in ("settled_at", "settled_by")),
    *(_exactly_when(name, "state = 'CLOSED'") for name in ("closed_at", "closed_by")),
)

settlement_window = _table(
    "settlement_window",
    _month(primary_key=True),
    _text("timezone", primary_key=True),
    _instant("starts_at"),
    _instant("ends_at"),
    CheckConstraint("ends_at > starts_at"),
)

settlement_pass = _table(
    "settlement_pass",
    _month("month", ForeignKey("settlement_period.month"), primary_key=True),
    Column("pass", sa.Integer, CheckConstraint("pass >= 1"), primary_key=True),
    _instant("cutoff"),
    _text("state", server_default="RUNNING"),
    _instant("planned_at", nullable=True),
    _stamp("started_at"),
    _instant("finished_at", nullable=True),
    _one_of("state", "RUNNING", "DONE", "GIVEN_UP"),
    _exactly_when("finished_at", "state <> 'RUNNING'"),
    CheckConstraint("state = 'RUNNING' OR planned_at IS NOT NULL"),
    _index("settlement_pass_one_running", "month", unique=True, where="state = 'RUNNING'"),
)

settlement_chunk = _table(
    "settlement_chunk",
    _month(primary_key=True),
    Column("pass", sa.Integer, primary_key=True),
    _month("origin_month", primary_key=True),
    Column("low_id", sa.BigInteger, primary_key=True),
    _column("high_id", sa.BigInteger, nullable=True),
    _text("state", server_default="PLANNED"),
    *(_count(name) for name in ("rows_new", "rows_existing", "rows_adjusted")),
    _text("error", nullable=True),
    _text("worker", nullable=True),
    _instant("finished_at", nullable=True),
    CheckConstraint("origin_month <= month"),
    CheckConstraint("high_id >= low_id"),
    _one_of("state", "PLANNED", "DONE", "FAILED"),
    _exactly_when("error", "state = 'FAILED'"),
    _exactly_when("finished_at", "state <> 'PLANNED'"),
    ForeignKeyConstraint(["month", "pass"], ["settlement_pass.month", "settlement_pass.pass"]),
    _index("settlement_chunk_planned_idx", "month", "pass", "origin_month", "low_id", where="state = 'PLANNED'"),
)

parked_organization = _table(
    "parked_organization",
    _id(always=True),
    _reference("organization_id", "organization.id"),
    _month(),
    _text("error", nullable=True),
    _text("reason", nullable=True),
    _stamp("since"),
    _instant("resolved_at", nullable=True),
    CheckConstraint("num_nonnulls(error, reason) = 1"),
    _index("parked_organization_unresolved", "organization_id", "month", unique=True, where="resolved_at IS NULL"),
)

ledger_entry = _table(
    "ledger_entry",
    _column("organization_id", sa.BigInteger),
    _month(),
    _column("currency", sa.CHAR(3)),
    _month("origin_month"),
    *(_column(name, sa.BigInteger) for name in _AMOUNTS),
    _text("reason", nullable=True),
    _column("settlement_pass", sa.Integer),
    _stamp("posted_at"),
    _text("run_id", nullable=True),
    _count("sequence", sa.Integer),
    sa.PrimaryKeyConstraint(
        "organization_id", "month", "currency", "origin_month", "sequence", name="ledger_entry_pkey"
    ),
    CheckConstraint("origin_month <= month", name="ledger_entry_origin_month_check"),
    CheckConstraint(
        "net = captures + refunds + chargebacks + fees - commission - commission_tax", name="ledger_entry_net_check"
    ),
    CheckConstraint("sequence IS NOT NULL AND sequence >= 0", name="ledger_entry_sequence_check"),
    _index(
        "ledger_entry_month_idx",
        "month",
        "origin_month",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
)

settlement_total = _table(
    "settlement_total",
    _month("month", ForeignKey("settlement_period.month"), primary_key=True),
    Column("currency", sa.CHAR(3), ForeignKey("currency.code"), primary_key=True),
    _column("organizations", sa.BigInteger),
    *(_column(name, sa.Numeric) for name in _AMOUNTS),
)

# --- Written by whatever has an effect outside: the outbox with its cause, claims and firings with each scheduled run.

outbox_event = _table(
    "outbox_event",
    _id(always=True),
    _column("event_id", sa.Uuid, unique=True, server_default=text("gen_random_uuid()")),
    *(_text(name) for name in ("aggregate_type", "aggregate_id", "event_type")),
    _column("payload", JSONB),
    _text("dedupe_key", unique=True),
    _instant("occurred_at"),
    _text("state", server_default="PENDING"),
    _stamp("available_at"),
    _count("attempts", sa.Integer, CheckConstraint("attempts >= 0")),
    _instant("lease_until", nullable=True),
    _text("last_error", nullable=True),
    _instant("delivered_at", nullable=True),
    _one_of("state", "PENDING", "INFLIGHT", "DELIVERED", "DEAD", "IN_DOUBT", "SUPPRESSED", "HELD"),
    _exactly_when("lease_until", "state = 'INFLIGHT'"),
    _exactly_when("delivered_at", "state = 'DELIVERED'"),
    _index("outbox_event_due_idx", "available_at", where="state IN ('PENDING', 'INFLIGHT')"),
    _index(
        "outbox_event_aggregate_idx",
        "aggregate_type",
        "aggregate_id",
        "id",
        where="state NOT IN ('DELIVERED', 'SUPPRESSED')",
    ),
)

reminder = _table(
    "reminder",
    _id(always=True),
    _reference("reservation_id", "reservation.id"),
    _text("kind"),
    _column("event_date", sa.Date),
    _text("state"),
    _column("outbox_event_id", sa.Uuid, ForeignKey("outbox_event.event_id"), nullable=True),
    _stamp("created_at"),
    _one_of("state", "QUEUED", "SKIPPED", "MISSED"),
    _exactly_when("outbox_event_id", "state = 'QUEUED'"),
    UniqueConstraint("reservation_id", "kind", "event_date"),
)

job_execution = _table(
    "job_execution",
    _text("job", primary_key=True),
    _text("idempotency_key", primary_key=True),
    _text("state"),
    _column("attempt", sa.Integer, CheckConstraint("attempt >= 1"), server_default=text("1")),
    _text("owner"),
    _stamp("heartbeat_at"),
    _instant("lease_until", nullable=True),
    _column("result", JSONB, nullable=True),
    _stamp("started_at"),
    _instant("finished_at", nullable=True),
    _one_of("state", "PROCESSING", "COMPLETED", "FAILED"),
    _exactly_when("lease_until", "state = 'PROCESSING'"),
    _exactly_when("finished_at", "state <> 'PROCESSING'"),
)

job_firing = _table(
    "job_firing",
    _id(always=True),
    _text("job"),
    _instant("scheduled_for"),
    _text("partition", nullable=True),
    _stamp("fired_at"),
    _text("host"),
    _column("pid", sa.Integer),
    _text("run_id"),
    _text("parent_run_id", nullable=True),
    _text("outcome"),
    _one_of("outcome", "ACCEPTED", "DUPLICATE", "RETRY"),
    _index("job_firing_window_idx", "job", "scheduled_for"),
)
