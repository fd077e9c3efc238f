"""Runs that an instance has launched: what is reported of them, how they are now, and a look of run monitoring."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from dagster import DagsterEvent, DagsterEventType, DagsterInstance, DagsterRun
from dagster._daemon.monitoring import execute_run_monitoring_iteration


def report(instance: DagsterInstance, run: DagsterRun, event: DagsterEventType) -> None:
    instance.report_dagster_event(DagsterEvent(event_type_value=event.value, job_name=run.job_name), run.run_id)


def now(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """The run as it is now."""
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def poll(instance: DagsterInstance) -> list[Any]:
    """Let run monitoring look once; returns the errors that it met."""
    context: Any = SimpleNamespace(instance=instance, create_request_context=lambda: None)
    return [error for error in execute_run_monitoring_iteration(context, logging.getLogger("poll")) if error]
