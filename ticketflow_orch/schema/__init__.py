"""The tables as Python names them: what the migrations build, to the last check and index; a test compares both.

The database is built by the migrations alone; nothing here creates anything. Money is minor units of its currency,
an instant is an aware UTC datetime, a month is the date of its first day.
"""

from __future__ import annotations

from ticketflow_orch.schema.anomalies import anomaly_search, movement_anomaly
from ticketflow_orch.schema.application import (
    currency,
    data_import,
    event,
    money_movement,
    organization,
    organization_currency,
    reservation,
)
from ticketflow_orch.schema.books import opening_balance, organization_balance, payout, statement_mail
from ticketflow_orch.schema.columns import metadata
from ticketflow_orch.schema.effects import (
    alert,
    alert_group,
    bad_row,
    delivery_destination,
    delivery_stop,
    event_change,
    job_execution,
    job_firing,
    late_capture,
    mail_suppression,
    outbox_attempt,
    outbox_event,
    outbox_event_type,
    reminder,
    reminder_kind,
    reminder_lead,
)
from ticketflow_orch.schema.installation import installation, installation_change, organization_change
from ticketflow_orch.schema.settlement import (
    ledger_entry,
    parked_organization,
    settlement_chunk,
    settlement_pass,
    settlement_period,
    settlement_total,
    settlement_window,
)

__all__ = [
    "alert",
    "alert_group",
    "anomaly_search",
    "bad_row",
    "currency",
    "data_import",
    "delivery_destination",
    "delivery_stop",
    "event",
    "event_change",
    "installation",
    "installation_change",
    "job_execution",
    "job_firing",
    "late_capture",
    "ledger_entry",
    "mail_suppression",
    "metadata",
    "money_movement",
    "movement_anomaly",
    "opening_balance",
    "organization",
    "organization_balance",
    "organization_change",
    "organization_currency",
    "outbox_attempt",
    "outbox_event",
    "outbox_event_type",
    "parked_organization",
    "payout",
    "reminder",
    "reminder_kind",
    "reminder_lead",
    "reservation",
    "settlement_chunk",
    "settlement_pass",
    "settlement_period",
    "settlement_total",
    "settlement_window",
    "statement_mail",
]
