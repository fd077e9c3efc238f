"""The table of jobs says what the code location has: names, pools, hours, and how far apart these are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import dagster as dg

from schedules import SCHEDULES
from sensors import redrive_outbox_job, relay_outbox_job, settlement_shard_job
from sensors.missed_windows import ticks
from tests.support.rows import instant
from ticketflow_orch.jobs.intervals import JOBS, REDRIVE_OUTBOX, RELAY_OUTBOX, WATCHED_BY_AGE, ScheduledJob, job_of

BY_NAME = {job.dagster_name: job for job in JOBS}
OF_OPS = [one.job for one in SCHEDULES if isinstance(one.job, dg.JobDefinition)] + [
    relay_outbox_job,
    redrive_outbox_job,
    settlement_shard_job,
]


def test_every_schedule_runs_a_job_of_the_table_at_its_hours() -> None:
    scheduled = {job.dagster_name: job.cron for job in JOBS if isinstance(job, ScheduledJob)}
    assert {one.job_name: one.cron_schedule for one in SCHEDULES} == scheduled
    assert {relay_outbox_job.name, redrive_outbox_job.name} == {RELAY_OUTBOX.dagster_name, REDRIVE_OUTBOX.dagster_name}


def test_an_op_has_the_name_and_the_pool_that_the_table_says() -> None:
    assert len(OF_OPS) == 7
    for job in OF_OPS:
        [op] = job.all_node_defs
        known = BY_NAME[job.name]
        assert isinstance(op, dg.OpDefinition)
        assert (op.name, op.pool, job_of(job.name)) == (known.name, known.pool, known.name)


def test_hours_are_as_far_apart_as_the_table_says() -> None:
    start = instant("2026-06-10T12:00")
    for schedule in SCHEDULES:
        job = BY_NAME[schedule.job_name]
        assert isinstance(job, ScheduledJob)
        first, second, *_ = ticks(schedule, start, start + timedelta(days=3))
        assert second - first == job.interval
        assert job.longest_due == 3 * job.interval


def test_the_page_for_operators_names_the_same_bounds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text("utf-8")
    for job in WATCHED_BY_AGE:
        assert f"{job.longest_due.total_seconds():.0f} for {job.name}" in page
