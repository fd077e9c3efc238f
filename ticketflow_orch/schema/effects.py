"""Written by whatever has an effect outside: the outbox with its cause, claims and firings with each run."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB

from ticketflow_orch.schema.columns import (
    column,
    count,
    exactly_when,
    identity,
    index,
    instant,
    one_of,
    reference,
    stamp,
    table,
    text_column,
)

outbox_event = table(
    "outbox_event",
    identity(always=True),
    column("event_id", sa.Uuid, unique=True),
    *(text_column(name) for name in ("aggregate_type", "aggregate_id", "event_type")),
    column("payload", JSONB),
    text_column("dedupe_key", unique=True),
    instant("occurred_at"),
    text_column("state", server_default="PENDING"),
    instant("available_at", nullable=True, server_default=text("clock_timestamp()")),
    count("attempts", sa.Integer, CheckConstraint("attempts >= 0")),
    count("attempts_forgiven", sa.Integer),
    instant("lease_until", nullable=True),
    text_column("last_error", nullable=True),
    instant("ended_at", nullable=True),
    text_column("owner", nullable=True),
    column("body", sa.LargeBinary, nullable=True),
    instant("first_attempt_at", nullable=True),
    instant("last_attempt_at", nullable=True),
    instant("doubtful_since", nullable=True),
    text_column("last_response", nullable=True),
    text_column("destination", nullable=True),
    instant("reconsider_until", nullable=True),
    CheckConstraint("reconsider_until IS NULL OR state = 'SUPPRESSED'", name="outbox_event_reconsider_until_check"),
    instant("tried_since", nullable=True),
    count("lost", sa.Integer),
    text_column("last_owner", nullable=True),
    CheckConstraint("attempts_forgiven BETWEEN 0 AND attempts", name="outbox_event_attempts_forgiven_check"),
    one_of("state", "PENDING", "INFLIGHT", "DELIVERED", "DEAD", "IN_DOUBT", "SUPPRESSED", "HELD"),
    *(exactly_when(name, "state = 'INFLIGHT'") for name in ("lease_until", "owner")),
    exactly_when("ended_at", "state IN ('DELIVERED', 'SUPPRESSED')"),
    exactly_when("available_at", "state IN ('PENDING', 'INFLIGHT')"),
    index("outbox_event_due_idx", "event_type", "available_at", "id", where="ended_at IS NULL"),
    index("outbox_event_waiting_idx", "aggregate_type", "aggregate_id", "id", where="ended_at IS NULL"),
    index("outbox_event_told_idx", "aggregate_type", "aggregate_id", where="ended_at IS NOT NULL"),
    index("outbox_event_ended_idx", "ended_at", where="ended_at IS NOT NULL", postgresql_include=["event_type"]),
    index("outbox_event_reconsider_idx", "id", where="reconsider_until IS NOT NULL"),
)

outbox_event_type = table("outbox_event_type", text_column("name", primary_key=True))

outbox_attempt = table(
    "outbox_attempt",
    column("outbox_id", sa.BigInteger, primary_key=True),
    column("attempt", sa.Integer, primary_key=True),
    instant("began_at", nullable=True),
    stamp("ended_at"),
    text_column("owner", nullable=True),
    text_column("destination", nullable=True),
    text_column("outcome"),
    text_column("error", nullable=True),
    text_column("response", nullable=True),
)

delivery_destination = table(
    "delivery_destination",
    text_column("name", primary_key=True),
    instant("failing_since", nullable=True),
    count("pauses", sa.Integer, CheckConstraint("pauses >= 0")),
    *(instant(name, nullable=True) for name in ("open_until", "probe_until", "paused_until")),
    column("rate", sa.Numeric, CheckConstraint("rate > 0"), nullable=True),
    column("ceiling", sa.Numeric, nullable=True),
    *(instant(name, nullable=True) for name in ("throttled_at", "rate_at", "next_at")),
    text_column("last_error", nullable=True),
)

delivery_stop = table(
    "delivery_stop",
    text_column("kind", primary_key=True),
    text_column("name", primary_key=True),
    text_column("reason"),
    text_column("stopped_by"),
    stamp("stopped_at"),
    one_of("kind", "DESTINATION", "EVENT_TYPE"),
)

reminder = table(
    "reminder",
    identity(always=True),
    reference("reservation_id", "reservation.id"),
    text_column("kind"),
    column("event_date", sa.Date),
    text_column("state"),
    column("outbox_event_id", sa.Uuid, nullable=True),
    stamp("created_at"),
    instant("told_starts_at", nullable=True),
    text_column("told_venue", nullable=True),
    count("changes_told", sa.Integer),
    one_of("state", "QUEUED", "SKIPPED", "MISSED"),
    exactly_when("outbox_event_id", "state = 'QUEUED'"),
    UniqueConstraint("reservation_id", "kind", "event_date"),
)

job_execution = table(
    "job_execution",
    text_column("job", primary_key=True),
    text_column("idempotency_key", primary_key=True),
    text_column("state"),
    column("attempt", sa.Integer, CheckConstraint("attempt >= 1"), server_default=text("1")),
    text_column("owner"),
    stamp("heartbeat_at"),
    instant("lease_until", nullable=True),
    column("result", JSONB, nullable=True),
    stamp("started_at"),
    instant("finished_at", nullable=True),
    one_of("state", "PROCESSING", "COMPLETED", "FAILED"),
    exactly_when("lease_until", "state = 'PROCESSING'"),
    exactly_when("finished_at", "state <> 'PROCESSING'"),
    index("job_execution_lease_idx", "lease_until", where="state = 'PROCESSING'"),
)

job_firing = table(
    "job_firing",
    identity(always=True),
    text_column("job"),
    instant("scheduled_for"),
    text_column("partition", nullable=True),
    stamp("fired_at"),
    text_column("host"),
    column("pid", sa.Integer),
    text_column("run_id"),
    text_column("parent_run_id", nullable=True),
    text_column("outcome"),
    one_of("outcome", "ACCEPTED", "DUPLICATE", "RETRY"),
    index("job_firing_window_idx", "job", "scheduled_for"),
    index("job_firing_fired_at_idx", "fired_at"),
)

reminder_kind = table(
    "reminder_kind",
    text_column("kind", primary_key=True),
    column("lead", sa.Interval, CheckConstraint("lead > interval '0'")),
    instant("enabled_at"),
)

# The leads that a kind had, where it had several; each held until the next one.
reminder_lead = table(
    "reminder_lead",
    text_column("kind", primary_key=True),
    instant("since", primary_key=True),
    column("lead", sa.Interval, CheckConstraint("lead > interval '0'")),
)

# What buyers who know of an event may have to be told, until somebody has looked at it.
event_change = table(
    "event_change",
    identity(always=True),
    column("event_id", sa.BigInteger, sa.ForeignKey("event.id", ondelete="CASCADE")),
    text_column("what"),
    stamp("changed_at"),
    instant("looked_at", nullable=True),
    one_of("what", "MOVED", "CANCELLED"),
    index("event_change_event_id_idx", "event_id"),
    index("event_change_waiting_idx", "id", where="looked_at IS NULL"),
)

mail_suppression = table(
    "mail_suppression",
    identity(always=True),
    text_column("address"),
    text_column("reason"),
    text_column("detail"),
    column("outbox_event_id", sa.Uuid, nullable=True),
    text_column("suppressed_by"),
    stamp("suppressed_at"),
    text_column("cleared_by", nullable=True),
    instant("cleared_at", nullable=True),
    one_of("reason", "BOUNCE", "COMPLAINT", "UNSUBSCRIBE", "BY_HAND"),
    exactly_when("cleared_at", "cleared_by IS NOT NULL"),
    index("mail_suppression_address_idx", "address", "reason", where="cleared_at IS NULL", unique=True),
)

alert = table(
    "alert",
    text_column("kind", primary_key=True),
    text_column("key", primary_key=True),
    stamp("alerted_at"),
    reference("group_id", "alert_group.id", nullable=True),
    column("event_id", sa.Uuid, nullable=True),
    index("alert_group_id_idx", "group_id", where="group_id IS NOT NULL"),
)

alert_group = table(
    "alert_group",
    identity(always=True),
    text_column("kind"),
    text_column("subject"),
    text_column("severity"),
    one_of("severity", "PAGE", "TICKET", "INFO"),
    text_column("key"),
    column("payload", JSONB),
    column("occurrences", sa.BigInteger, CheckConstraint("occurrences >= 1"), server_default=text("1")),
    instant("first_at"),
    instant("last_at"),
    instant("told_at"),
    instant("resolved_at", nullable=True),
    text_column("resolved_by", nullable=True),
    CheckConstraint("(resolved_at IS NOT NULL) = (resolved_by IS NOT NULL)"),
    index("alert_group_open_idx", "kind", "subject", unique=True, where="resolved_at IS NULL"),
)

# What jobs leave out, from the break to its end.
bad_row = table(
    "bad_row",
    text_column("job", primary_key=True),
    text_column("row_key", primary_key=True),
    *(text_column(name) for name in ("name", "error")),
    *(instant(name) for name in ("since", "tried_at")),
    instant("alerted_at", nullable=True),
)

late_capture = table(
    "late_capture",
    Column("movement_id", sa.BigInteger, primary_key=True, autoincrement=False),
)
