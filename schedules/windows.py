"""What the jobs on schedules share: requesting a run, leaving a running job alone, and a run's claimed window.

When a job runs, and how late is too late, is in `ticketflow_orch.jobs.intervals`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import dagster as dg
from sqlalchemy import Engine

from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs import run_once
from ticketflow_orch.jobs.batches import BadRow, ManyBadRowsError
from ticketflow_orch.jobs.firings import (
    MAX_RUNTIME,
    PARENT_RUN,
    PARTITION_RANGE,
    ROOT_RUN,
    SCHEDULED_FOR,
    Firing,
    Outcome,
    firing_by_hand,
    scheduled_firing,
    window_tags,
)
from ticketflow_orch.jobs.pods import SMALL_POD
from ticketflow_orch.jobs.run_once import ClaimedWindow
from ticketflow_orch.months import Month

UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# In seconds. A run whose worker hangs keeps its job waiting no longer than this and one poll of the run monitoring.
MINUTE_JOB = {MAX_RUNTIME: "120", **SMALL_POD}
DAILY_JOB = {MAX_RUNTIME: "3600", **SMALL_POD}


def window_request(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """The run of the window that the tick stands for."""
    tags = window_tags(context.scheduled_execution_time)
    return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat(timespec="seconds"), tags=tags)


def stretches(months: Sequence[Month]) -> Iterator[list[Month]]:
    """`months`, which are in order, cut where one does not follow the one before."""
    stretch: list[Month] = []
    for month in months:
        if stretch and month != stretch[-1].next():
            yield stretch
            stretch = []
        stretch.append(month)
    if stretch:
        yield stretch


def months_request(context: dg.ScheduleEvaluationContext, due: Sequence[Month]) -> dg.RunRequest:
    """One run for the months from the first to the last that is due; what is done in between stays as it is."""
    tags = window_tags(context.scheduled_execution_time)
    key = f"{context.scheduled_execution_time.isoformat(timespec='seconds')} {due[0]}"
    if len(due) == 1:
        return dg.RunRequest(partition_key=str(due[0]), run_key=key, tags=tags)
    span = dict(zip(PARTITION_RANGE, (str(due[0]), str(due[-1])), strict=True))
    return dg.RunRequest(run_key=key, tags=tags | span)


def still_running(context: dg.ScheduleEvaluationContext, job: str) -> dg.SkipReason | None:
    """A reason to skip that names the run of `job` that is queued or running, if there is one."""
    runs = context.instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED), limit=1)
    if not runs:
        return None
    window = runs[0].tags.get(SCHEDULED_FOR, "a launch by hand")
    return dg.SkipReason(f"Run {runs[0].run_id} ({window}) is still {runs[0].status.value.lower().replace('_', ' ')}.")


@contextmanager
def claimed_window(context: dg.OpExecutionContext, engine: Engine) -> Iterator[ClaimedWindow]:
    """The run's window, claimed under the op's name for the block, which does the work if it `is_ours`.

    What came of it, or why there was nothing to do, is in the run's metadata.

    Raises:
        dg.Failure: what the block was refused, in one sentence.
    """
    try:
        with run_once.claimed_window(engine, firing_of(context)) as window:
            yield window
    except (TicketflowError, ManyBadRowsError) as error:
        raise dg.Failure(str(error)) from error
    if window.outcome == Outcome.DUPLICATE:
        firing = window.firing
        context.log.warning(f"The window {firing.key} of {firing.job} has been started before; see job_firing.")
    context.add_output_metadata(window_metadata(window))


def log_left_out(context: dg.OpExecutionContext, rows: Sequence[BadRow]) -> None:
    """Say in the run's log which `rows` its work had to leave out, and why."""
    for row in rows:
        context.log.error(f"Row {row.called} was left out: {row.error}")


def firing_of(context: dg.OpExecutionContext) -> Firing:
    """The firing that this run is, by its tags; a launch by hand counts from the creation of the first such run.

    Raises:
        InvalidInput: the tag of the window is not an instant.
    """
    job, run = context.op.name, context.run
    # What the run's own record holds, where its tags do not repeat it.
    lineage = {PARENT_RUN: run.parent_run_id, ROOT_RUN: run.root_run_id}
    tags = {**{name: value for name, value in lineage.items() if value}, **run.tags}
    return scheduled_firing(job, run.run_id, tags) or firing_by_hand(job, run.run_id, tags, _launched_at(context))


def window_metadata(window: ClaimedWindow) -> dict[str, dg.MetadataValue[Any] | int | str]:
    """What people see of a run: which window, what kind of start, whether it did anything, and what came of it."""
    done = window.done
    shown: dict[str, dg.MetadataValue[Any] | int | str] = {
        "window": window.firing.key,
        "firing": done.outcome.lower(),
        "status": done.status.lower(),
    }
    for name, value in done.result.items():
        label = name.replace("_", " ")
        shown[label] = (
            value
            if isinstance(value, int | str)
            else dg.MetadataValue.json(list(value) if isinstance(value, tuple) else value)
        )
    if done.attempt is not None:
        shown["attempt"] = done.attempt
    return shown


def _launched_at(context: dg.OpExecutionContext) -> datetime:
    # The first run of a family may have been deleted by now; its own record is always there.
    family = [run_id for run_id in (context.run.root_run_id, context.run.run_id) if run_id]
    records = context.instance.get_run_records(dg.RunsFilter(run_ids=family))
    return min(record.create_timestamp for record in records)
