"""Partition keys and run configuration that make no sense, as launched from the pages of the UI."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
import pytest

from tests.cli.refusals import World, contents

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
KEY = "dagster/partition"
SETTLEMENT, BOOKS, PAYOUTS = "monthly_settlement_job", "close_books_job", "payouts_job"
STATEMENTS, EXPLANATION, EVENTS = "statements_job", "explain_job", "close_events_job"


def config(**values: object) -> dict[str, object]:
    """The launchpad's configuration of a settlement."""
    return {"ops": {"monthly_settlement": {"config": values}}}


def question(**values: object) -> dict[str, object]:
    """The launchpad's configuration of an explanation."""
    return {"ops": {"explanation": {"config": values}}}


MONTH = {KEY: "2026-01"}
RUNS: Mapping[str, tuple[str, dict[str, str], dict[str, object], str]] = {
    "no month to settle": (
        SETTLEMENT,
        {},
        {},
        "This run names no month; choose one where it is launched, such as 2026-03.",
    ),
    "no month to close": (BOOKS, {}, {}, "This run names no month"),
    "no month to pay": (PAYOUTS, {}, {}, "This run names no month"),
    "no month to state": (STATEMENTS, {}, {}, "This run names no month"),
    "several months in a run": (
        SETTLEMENT,
        {FIRST: "2026-01", LAST: "2026-02"},
        {},
        "A run takes one month, and this one names 2; launch them as",
    ),
    "a range turned around": (
        BOOKS,
        {FIRST: "2026-03", LAST: "2026-01"},
        {},
        "There is no month from 2026-03 to 2026-01; turn the two around.",
    ),
    "before the first month": (
        SETTLEMENT,
        {KEY: "2014-09"},
        {},
        "2014-09 is before the first month, 2014-10; choose a",
    ),
    "closed before the first month": (
        BOOKS,
        {KEY: "2014-09"},
        {},
        "2014-09 is before the first month, 2014-10; choose",
    ),
    "a range from before the first month": (
        BOOKS,
        {FIRST: "2014-09", LAST: "2026-01"},
        {},
        "2014-09 is before the first month, 2014-10; choose a later one.",
    ),
    "a month that is not over": (SETTLEMENT, {KEY: "2199-01"}, {}, "2199-01 is not over in UTC before 2199-02-01"),
    "a month that is not closed": (PAYOUTS, MONTH, {}, "2026-01 was never settled, and only closed months are paid"),
    "no workers": (SETTLEMENT, MONTH, config(workers=0), "workers: 0 is refused; write a number from 1 to 32."),
    "too many workers": (SETTLEMENT, MONTH, config(workers=33), "workers: 33 is refused; write a number from 1 to 32."),
    "no run to settle it": (SETTLEMENT, MONTH, config(shards=0), "shards: 0 is refused; write a number from 1 to 32."),
    "too many runs": (SETTLEMENT, MONTH, config(shards=33), "shards: 33 is refused; write a number from 1 to 32."),
    "no chunk": (
        SETTLEMENT,
        MONTH,
        config(chunk_size=0),
        "chunk_size: 0 is refused; write a number from 1 to 10,000,000.",
    ),
    "a pause without an end": (
        SETTLEMENT,
        MONTH,
        config(chunk_pause=float("inf")),
        "chunk_pause: inf is refused; write a number from 0 to 3,600.",
    ),
    "a pause that is no number": (SETTLEMENT, MONTH, config(chunk_pause=float("nan")), "chunk_pause: nan is refused"),
    "a wait before now": (SETTLEMENT, MONTH, config(writer_wait=-1.0), "writer_wait: -1.0 is refused; write a number"),
    "a file without a dry run": (
        SETTLEMENT,
        MONTH,
        config(dry_run_file="x.csv"),
        "dry_run_file: 'x.csv' is for a dry run",
    ),
    "a dry run into nowhere": (
        SETTLEMENT,
        MONTH,
        config(dry_run=True, dry_run_file="/nowhere/x.csv"),
        "The file '/nowhere/x.csv' would not be in ",
    ),
    "a dry run of the future": (
        SETTLEMENT,
        {KEY: "2199-01"},
        config(dry_run=True),
        "2199-01 is not over in UTC before",
    ),
    "no organization to explain": (
        EXPLANATION,
        {},
        question(organization="", month="2026-01"),
        "There is no organization ''",
    ),
    "no month to explain": (EXPLANATION, {}, question(organization="hall", month="March"), "'March' is not a month"),
    "a window that is no instant": (EVENTS, {"ticketflow/scheduled_for": "today"}, {}, "'today' is not an instant"),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_that_makes_no_sense_fails_with_a_sentence_of_ours(world: World, case: str) -> None:
    job, tags, run_config, sentence = RUNS[case]
    before = contents(world.engine)
    with dg.DagsterInstance.ephemeral() as instance:
        result = world.definitions.resolve_job_def(job).execute_in_process(
            instance=instance, tags=tags, run_config=QUIET | run_config, raise_on_error=False
        )
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None, failure.error
    assert sentence in str(failure.user_failure_data.description)
    assert contents(world.engine) == before
