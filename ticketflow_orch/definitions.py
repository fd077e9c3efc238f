"""The code location: all assets, checks, jobs, schedules and resources, assembled once for production and tests."""
# ruff: noqa: E402 - two things have to be done before the rest is imported

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

# What Dagster's import made stays. Unless it is set aside, the collector goes through all of it again while
# the rest is imported: a tenth of a second of each run.
gc.freeze()

# `assets`, `resources`, `schedules` and `sensors` are common names: whatever folder a process was started in, ours
# come first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assets import (
    BOOKS_CHECKS,
    PAYOUT_CHECKS,
    SETTLEMENT_CHECKS,
    closed_books,
    explain_job,
    explanation,
    monthly_settlement,
    months_board,
    outbox,
    outbox_is_delivered,
    payouts,
    settlement_statements,
    statements_add_up,
)
from resources import ClockResource, DatabaseResource, DeliveryResource, OutboxResource, as_given
from schedules import (
    SCHEDULES,
    audit_job,
    close_books_job,
    close_events_job,
    expire_reservations_job,
    housekeeping_job,
    monthly_settlement_job,
    payouts_job,
    send_reminders_job,
    statements_job,
)
from sensors import SENSORS, redrive_outbox_job, relay_outbox_job, settlement_shard_job
from ticketflow_orch.settings import settings


def build_definitions(resources: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The code location; `resources` replaces those of the environment, by key."""
    fixed_clock = settings().fixed_clock
    return dg.Definitions(
        assets=[monthly_settlement, closed_books, payouts, settlement_statements, outbox, months_board, explanation],
        asset_checks=[*SETTLEMENT_CHECKS, *BOOKS_CHECKS, *PAYOUT_CHECKS, statements_add_up, outbox_is_delivered],
        jobs=[
            monthly_settlement_job,
            close_books_job,
            payouts_job,
            statements_job,
            audit_job,
            explain_job,
            close_events_job,
            expire_reservations_job,
            send_reminders_job,
            housekeeping_job,
            relay_outbox_job,
            settlement_shard_job,
            redrive_outbox_job,
        ],
        schedules=SCHEDULES,
        sensors=SENSORS,
        resources=as_given(
            {
                "database": DatabaseResource(),
                "clock": ClockResource(fixed_at=fixed_clock.isoformat() if fixed_clock else ""),
                "outbox": OutboxResource(),
                "delivery": DeliveryResource(),
                **(resources or {}),
            }
        ),
        # Set here and not on jobs: backfills of the UI ignore a job's own. One process per run leaves no orphaned
        # step behind when it is killed.
        executor=dg.in_process_executor,
    )


defs = build_definitions()
