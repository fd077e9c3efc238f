"""Months through Dagster in this process, on the instance that the UI shows: settled, closed, paid, issued."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg
from sqlalchemy import Engine

from assets.partitions import months as partitions
from ticketflow_orch import clock
from ticketflow_orch.cli.terminal import console
from ticketflow_orch.dagster_host.dagster_internals import NO_COMPUTE_LOGS, InstanceRef
from ticketflow_orch.definitions import defs
from ticketflow_orch.errors import InterruptedRunError, InvalidInput, PreconditionFailed
from ticketflow_orch.jobs.firings import PARTITION_RANGE
from ticketflow_orch.jobs.intervals import CLOSE_BOOKS, MONTHLY_SETTLEMENT, PAYOUTS, STATEMENTS
from ticketflow_orch.months import Month
from ticketflow_orch.periods import zones
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.passes import latest_progress

if TYPE_CHECKING:
    from rich.progress import Progress

JOB = MONTHLY_SETTLEMENT.dagster_name
CLOSING_JOB = CLOSE_BOOKS.dagster_name
PAYOUTS_JOB = PAYOUTS.dagster_name
STATEMENTS_JOB = STATEMENTS.dagster_name
# Dagster's own log goes to the instance, where the UI shows it; on the terminal only what went wrong matters.
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_SECONDS_BETWEEN_LOOKS = 0.3
# What Dagster makes of Ctrl-C inside a step.
_INTERRUPTED = "DagsterExecutionInterruptedError"


@dataclass(frozen=True, slots=True)
class MonthRun:
    """One run of the settlement's job for `month`. `why` it failed is one sentence; `red_checks` did not pass.

    `why_nothing`: why the month is posted in no more, if so.
    """

    month: Month
    run_id: str
    succeeded: bool
    why: str
    red_checks: tuple[str, ...]
    rows_new: int
    rows_adjusted: int
    rows_existing: int
    parked: int
    why_nothing: str = ""


@dataclass(frozen=True, slots=True)
class SpanRun:
    """One run over several months.

    `said` is a sentence for each that came through, `why` it failed, if it did, another. `counted` sums up the whole
    numbers that the months show, by their labels.
    """

    succeeded: bool
    said: tuple[str, ...]
    why: str
    red_checks: tuple[str, ...]
    counted: Mapping[str, int]


def close_months(months: Sequence[Month], tags: dict[str, str]) -> SpanRun:
    """Close the months, which follow one another, in one run; it ends at the first that is refused."""
    return run_span(CLOSING_JOB, months, tags)


def run_span(job: str, months: Sequence[Month], tags: dict[str, str]) -> SpanRun:
    """Run a job that takes months, which follow one another, all at once.

    Raises:
        InvalidInput: one of the months is no partition.
        InterruptedRunError: Ctrl-C; the run is marked as failed.
    """
    _require_partitions(months)
    span = dict(zip(PARTITION_RANGE, (str(months[0]), str(months[-1])), strict=True))
    with _instance() as instance:
        result = defs.resolve_job_def(job).execute_in_process(
            instance=instance, run_config=_QUIET, tags=tags | span, raise_on_error=False
        )
    done = [event.step_materialization_data for event in result.all_events if event.is_step_materialization]
    failures = _failures(result)
    counted = Counter[str]()
    for event in done:
        values = ((label, entry.value) for label, entry in event.materialization.metadata.items())
        counted.update({label: value for label, value in values if isinstance(value, int)})
    return SpanRun(
        succeeded=result.success,
        said=tuple(str(event.materialization.metadata["summary"].value) for event in done),
        why=_why(failures[0]) if failures else "",
        red_checks=_red_checks(result),
        counted=counted,
    )


def settle_months(
    engine: Engine, months: Sequence[Month], tags: dict[str, str], *, full: bool = False
) -> Iterator[MonthRun]:
    """Run the settlement of each month in turn; a bar shows months and chunks on a terminal.

    The runs do not pass Dagster's queue; what keeps them apart from others of the same month is the database.

    Raises:
        InvalidInput: one of the months is no partition.
        InterruptedRunError: Ctrl-C; the run that was in progress is marked as failed.
    """
    _require_partitions(months)
    job = defs.resolve_job_def(JOB)
    config = _QUIET | ({"ops": {"monthly_settlement": {"config": {"full": True}}}} if full else {})
    with _instance() as instance, _bar() as bar:
        overall = bar.add_task("months", total=len(months))
        for month in months:
            with _chunks_shown(engine, bar, month):
                result = job.execute_in_process(
                    partition_key=str(month),
                    instance=instance,
                    run_config=config,
                    tags=tags,
                    raise_on_error=False,
                )
            bar.advance(overall)
            yield _summary(month, result)


def _summary(month: Month, result: dg.ExecuteInProcessResult) -> MonthRun:
    materializations = result.asset_materializations_for_node("monthly_settlement") if result.success else []
    metadata = materializations[0].metadata if materializations else {}
    failures = _failures(result)
    return MonthRun(
        month=month,
        run_id=result.run_id,
        succeeded=result.success,
        why=_why(failures[0]) if failures else "",
        red_checks=_red_checks(result),
        # Without a pass there is no cutoff.
        why_nothing=str(metadata["summary"].value) if metadata and "cutoff" not in metadata else "",
        **{
            name.replace(" ", "_"): int(str(metadata[name].value)) if name in metadata else 0
            for name in ("rows new", "rows adjusted", "rows existing", "parked")
        },
    )


def require_over(engine: Engine, months: Sequence[Month]) -> None:
    """Raise TicketflowError unless all `months` are over in every zone in use; nothing is started then."""
    _require_partitions(months)
    with engine.connect() as connection:
        zones.require_over(connection, max(months), clock.now(settings().fixed_clock))


def _require_partitions(months: Sequence[Month]) -> None:
    first, last = partitions.get_first_partition_key(), partitions.get_last_partition_key()
    if first is None:
        raise PreconditionFailed(
            "No month is over yet since the first one; set TICKETFLOW_FIRST_MONTH to an earlier one."
        )
    for month in months:
        if not partitions.has_partition_key(str(month)):
            raise InvalidInput(
                f"{month} is none of the months that are over, {first} to {last}; "
                "`ticketflow installation set first_month` sets the first."
            )


@contextmanager
def _instance() -> Iterator[dg.DagsterInstance]:
    """The instance that the UI shows, without its capture of what runs print, which is nothing.

    The processes that capture would print tracebacks of their own on Ctrl-C.
    """
    overrides = {
        "compute_logs": {**NO_COMPUTE_LOGS, "config": {}},
    }
    reference = InstanceRef.from_dir(os.environ["DAGSTER_HOME"], overrides=overrides)
    with dg.DagsterInstance.from_ref(reference) as instance:
        yield instance


def _failures(result: dg.ExecuteInProcessResult) -> list[dg.StepFailureData]:
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    if any(failure.error is not None and failure.error.cls_name == _INTERRUPTED for failure in failures):
        raise InterruptedRunError
    return failures


def _red_checks(result: dg.ExecuteInProcessResult) -> tuple[str, ...]:
    evaluations = result.get_asset_check_evaluations()
    return tuple(f"{check.check_name} ({check.description})" for check in evaluations if not check.passed)


def _why(failure: dg.StepFailureData) -> str:
    if failure.user_failure_data is not None and failure.user_failure_data.description:
        return str(failure.user_failure_data.description)
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return str(error.message).strip().splitlines()[0] if error is not None else "no reason was given"


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    target = console(stderr=True)
    with Progress(
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=target,
        transient=True,
        disable=not target.is_terminal,
    ) as bar:
        yield bar


@contextmanager
def _chunks_shown(engine: Engine, bar: Progress, month: Month) -> Iterator[None]:
    """While the block runs, show how many of the month's chunks are done, as the database has it."""
    if bar.disable:
        yield
        return
    task = bar.add_task(f"{month} chunks", total=None)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            with engine.connect() as connection:
                state = latest_progress(connection, month)
            bar.update(task, completed=state.done, total=state.total or None)

    looker = threading.Thread(target=look, name="progress", daemon=True)
    looker.start()
    try:
        yield
    finally:
        ended.set()
        looker.join()
        bar.remove_task(task)
