"""Ticks and runs of the jobs on schedules, in this process, on a database and at an instant that the test gives."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.schedule_definition import ScheduleExecutionData
from sqlalchemy.engine import URL

from resources import ClockResource, DatabaseResource
from schedules import SCHEDULES
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.jobs.firings import window_tags


@dataclass(frozen=True, slots=True)
class Office:
    """The code location on the database at `url`, where business time stands at `now`."""

    url: URL
    instance: dg.DagsterInstance

    def tick(self, schedule: str, at: datetime) -> dg.RunRequest | str:
        """The run that the schedule requests when it is `at`, or why it skips."""
        resources = self._resources(at)
        definition = next(one for one in SCHEDULES if one.name == schedule)
        with dg.build_schedule_context(
            instance=self.instance,
            scheduled_execution_time=at,
            resources={name: resources[name] for name in definition.required_resource_keys},
        ) as context:
            data = definition.evaluate_tick(context)
        return data.skip_message or (data.run_requests or [])[0]

    def run(self, job: str, at: datetime, tick: datetime | None = None, **tags: str) -> dict[str, Any]:
        """The metadata of a run for the window of `tick` (`at`, unless given) that happens `at`."""
        result = self.attempt(job, at, window_tags(tick or at) | {f"dagster/{name}": tags[name] for name in tags})
        assert result.success
        return shown(result)

    def attempt(self, job: str, at: datetime, tags: dict[str, str], **options: Any) -> dg.ExecuteInProcessResult:
        """A run with exactly `tags`, whatever comes of it."""
        definition = next(one.job for one in SCHEDULES if one.job_name == job)
        assert isinstance(definition, dg.JobDefinition)
        return definition.execute_in_process(
            instance=self.instance, tags=tags, resources=self._resources(at), raise_on_error=False, **options
        )

    def _resources(self, at: datetime) -> dict[str, Any]:
        return resources(self.url, at)


def resources(url: URL, at: datetime) -> dict[str, Any]:
    """What the code location is given on the database at `url`, where business time stands at `at`."""
    return {
        "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
        "clock": ClockResource(fixed_at=at.isoformat()),
    }


def months_tick(
    schedule: dg.ScheduleDefinition, url: URL, instance: dg.DagsterInstance, at: datetime
) -> dict[str, str] | str:
    """The tags of the first run that a schedule of months requests when it is `at`, or why it skips."""
    data = months_ticked(schedule, url, instance, at)
    return data.skip_message or dict((data.run_requests or [])[0].tags)


def months_ticked(
    schedule: dg.ScheduleDefinition, url: URL, instance: dg.DagsterInstance, at: datetime
) -> ScheduleExecutionData:
    """What a schedule of months comes to when it is `at`."""
    database = DatabaseResource(url=url.render_as_string(hide_password=False))
    with dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=at,
        resources={"database": database},
        repository_def=build_definitions({"database": database}).get_repository_def(),
    ) as context:
        return schedule.evaluate_tick(context)


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata that the run's op shows."""
    outputs = [event.step_output_data for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in outputs[0].metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> str:
    """What a failed run says to people."""
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    return failures[0].user_failure_data.description or "" if failures and failures[0].user_failure_data else ""
