"""What happens by the clock: one file per job, its op, job and schedule side by side.

They only translate: what is done is in `ticketflow_orch`, when it is due and how late is too late in its
`jobs.intervals`. What happens on a condition is in `sensors/`.
"""

from schedules.audit import audit_job, audit_schedule
from schedules.close_books import close_books_job, close_books_schedule
from schedules.close_events import close_events_job, close_events_schedule
from schedules.expire_reservations import expire_reservations_job, expire_reservations_schedule
from schedules.housekeeping import housekeeping_job, housekeeping_schedule
from schedules.payouts import payouts_job, payouts_schedule
from schedules.send_reminders import send_reminders_job, send_reminders_schedule
from schedules.settlement import monthly_settlement_job, settlement_schedule
from schedules.statements import statements_job, statements_schedule

SCHEDULES = [
    settlement_schedule,
    close_books_schedule,
    payouts_schedule,
    statements_schedule,
    audit_schedule,
    close_events_schedule,
    expire_reservations_schedule,
    send_reminders_schedule,
    housekeeping_schedule,
]
# Those that request a run at every tick, so that a tick without a firing was missed.
ALWAYS_REQUESTING = [close_events_schedule, housekeeping_schedule]

__all__ = [
    "ALWAYS_REQUESTING",
    "SCHEDULES",
    "audit_job",
    "audit_schedule",
    "close_books_job",
    "close_books_schedule",
    "close_events_job",
    "close_events_schedule",
    "expire_reservations_job",
    "expire_reservations_schedule",
    "housekeeping_job",
    "housekeeping_schedule",
    "monthly_settlement_job",
    "payouts_job",
    "payouts_schedule",
    "send_reminders_job",
    "send_reminders_schedule",
    "settlement_schedule",
    "statements_job",
    "statements_schedule",
]
