"""Schedules and sensors that stand still: switched off, without a code server, or failing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import (
    InstigatorStatus,
)

from schedules import SCHEDULES
from sensors import SENSORS
from tests.support.automation import NOW, SECOND, seen
from ticketflow_orch.cli.automation import standing_still

UNREACHABLE = ("DagsterUserCodeUnreachableError", "Could not reach user code server. gRPC Error code: UNAVAILABLE")
# What comes by the minute or more often.
FREQUENT = (
    "expire_reservations_schedule", "outbox_relay", "stale_claims", "board_watch", "alerts_watch", "duplicate_firings",
    "failed_checks", "failed_runs", "settlement_shards",
)  # fmt: skip


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def all_seen(instance: dg.DagsterInstance, **changed: timedelta) -> None:
    for one in (*SCHEDULES, *SENSORS):
        seen(instance, one.name, ago=changed.get(one.name, SECOND))


def found(instance: dg.DagsterInstance, *, is_daemon_alive: bool = True) -> list[str]:
    return list(standing_still(instance, is_daemon_alive=is_daemon_alive, now=NOW))


def test_where_nothing_was_ever_evaluated_it_is_the_code_server_once_the_daemon_has_worked_for_a_while(
    instance: dg.DagsterInstance,
) -> None:
    def said(since: datetime | None, *, is_daemon_alive: bool = True) -> list[str]:
        return list(standing_still(instance, is_daemon_alive=is_daemon_alive, daemon_since=since, now=NOW))

    assert said(None) == said(NOW - timedelta(minutes=1)) == []
    assert said(NOW - timedelta(minutes=10), is_daemon_alive=False) == []
    [line] = said(NOW - timedelta(minutes=10))
    assert line.startswith("code server: no schedule or sensor has ever been evaluated; its code server is away")


def test_where_all_were_evaluated_in_time_nothing_is_said(instance: dg.DagsterInstance) -> None:
    all_seen(instance, close_events_schedule=timedelta(hours=9), missed_windows=timedelta(minutes=5))
    assert found(instance) == []


@pytest.mark.parametrize("name", ["close_events_schedule", "outbox_relay"])
@pytest.mark.parametrize("is_daemon_alive", [True, False])
def test_what_somebody_switched_off_is_named_whether_or_not_the_daemon_lives(
    instance: dg.DagsterInstance, name: str, is_daemon_alive: bool
) -> None:
    seen(instance, name, InstigatorStatus.STOPPED)
    assert found(instance, is_daemon_alive=is_daemon_alive) == [
        f"{name} is switched off, so its work is not done; switch it on in the UI, under Automation."
    ]


def test_one_that_is_left_alone_is_named_and_only_where_the_daemon_lives(instance: dg.DagsterInstance) -> None:
    all_seen(instance, outbox_relay=timedelta(minutes=10), close_events_schedule=timedelta(hours=30))
    assert [line.partition(" has not been evaluated since")[0] for line in found(instance)] == [
        "close_events_schedule",
        "outbox_relay",
    ]
    assert found(instance, is_daemon_alive=False) == []


def test_where_everything_that_comes_by_the_minute_is_left_alone_it_is_the_code_server(
    instance: dg.DagsterInstance,
) -> None:
    all_seen(instance, **dict.fromkeys((one.name for one in (*SCHEDULES, *SENSORS)), timedelta(minutes=10)))
    [line] = found(instance)
    assert line.startswith("code server: no schedule or sensor has been evaluated since 2026-06-02T11:50:30+00:00;")


def test_it_is_named_after_the_first_evaluation_that_did_not_reach_it_as_long_as_none_has_reached_it_since(
    instance: dg.DagsterInstance,
) -> None:
    all_seen(instance)
    seen(instance, "outbox_relay", ago=timedelta(0), error=UNREACHABLE)
    [line] = found(instance)
    assert line.startswith("code server: no schedule or sensor has been evaluated since 2026-06-02T12:00:29+00:00;")
    seen(instance, "board_watch", ago=-SECOND)
    assert not any(line.startswith("code server") for line in found(instance))


def test_it_is_named_after_75_seconds_in_which_nothing_was_evaluated_though_no_evaluation_has_failed(
    instance: dg.DagsterInstance,
) -> None:
    all_seen(instance, **dict.fromkeys(FREQUENT, timedelta(seconds=76)))
    [line] = found(instance)
    assert line.startswith("code server: no schedule or sensor has been evaluated since 2026-06-02T11:59:14+00:00;")


@pytest.mark.parametrize("one", FREQUENT)
def test_as_long_as_one_thing_is_evaluated_it_is_not_the_code_server(instance: dg.DagsterInstance, one: str) -> None:
    all_seen(instance, **dict.fromkeys(FREQUENT, timedelta(minutes=10)) | {one: timedelta(seconds=74)})
    assert not any(line.startswith("code server") for line in found(instance))


@pytest.mark.parametrize(("seconds", "lines"), [(124, 0), (126, 1)])
def test_where_only_what_comes_by_the_minute_is_on_it_is_named_later(
    instance: dg.DagsterInstance, seconds: int, lines: int
) -> None:
    by_the_minute, *others = FREQUENT
    for name in others:
        seen(instance, name, InstigatorStatus.STOPPED)
    seen(instance, by_the_minute, ago=timedelta(seconds=seconds))
    assert sum(line.startswith("code server") for line in found(instance)) == lines


def test_a_code_server_that_is_away_is_one_line_and_not_one_for_each(instance: dg.DagsterInstance) -> None:
    for one in (*SCHEDULES, *SENSORS):
        seen(instance, one.name, error=UNREACHABLE)
    [line] = found(instance)
    assert line.startswith("code server: ")


def test_an_evaluation_that_failed_is_told_with_its_first_line_until_a_run_makes_up_for_it(
    instance: dg.DagsterInstance,
) -> None:
    all_seen(instance)
    seen(
        instance,
        "outbox_relay",
        ago=timedelta(0),
        error=("OperationalError", "connection refused.\nIs the server running?"),
    )
    seen(instance, "payouts_schedule", ago=timedelta(0), error=("OperationalError", "connection refused"))
    assert found(instance) == [
        f"{name}: its last evaluation failed: connection refused; correct that: it is evaluated again at its next tick."
        for name in ("payouts_schedule", "outbox_relay")
    ]
    instance.add_run(dg.DagsterRun("payouts_job"))
    assert [line.partition(":")[0] for line in found(instance)] == ["outbox_relay"]
