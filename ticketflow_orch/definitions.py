"""The code location: all assets, checks, jobs, schedules and resources, assembled once for production and tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

# `assets`, `resources`, `schedules` and `sensors` are common names: whatever folder a process was started in, ours
# come first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assets import SETTLEMENT_CHECKS, monthly_settlement
from resources import ClockResource, DatabaseResource, OutboxResource
from schedules import (
    SCHEDULES,
    close_events_job,
    expire_reservations_job,
    housekeeping_job,
    monthly_settlement_job,
    send_reminders_job,
)
from sensors import SENSORS
from ticketflow_orch.settings import settings


def build_definitions(resources: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The code location; `resources` replaces those of the environment, by key."""
    fixed_clock = settings().fixed_clock
    return dg.Definitions(
        assets=[monthly_settlement],
        asset_checks=SETTLEMENT_CHECKS,
        jobs=[
            monthly_settlement_job,
            close_events_job,
            expire_reservations_job,
            send_reminders_job,
            housekeeping_job,
        ],
        schedules=SCHEDULES,
        sensors=SENSORS,
        resources={
            "database": DatabaseResource(url=dg.EnvVar("TICKETFLOW_DATABASE_URL")),
            "clock": ClockResource(fixed_at=fixed_clock.isoformat() if fixed_clock else ""),
            "outbox": OutboxResource(),
            **(resources or {}),
        },
        # Set here and not on jobs: backfills of the UI ignore a job's own. One process per run leaves no orphaned
        # step behind when it is killed.
        executor=dg.in_process_executor,
    )


defs = build_definitions()
