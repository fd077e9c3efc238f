"""The relay's sensor starts it when something may go; its run delivers, ends, and shows what it did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from resources import ClockResource, DatabaseResource, DeliveryResource
from schedules.housekeeping import PRUNED_JOBS
from sensors import outbox_relay, redrive_outbox_job, relay_outbox_job
from tests.outbox.relay.world import NOW, add, change, states
from tests.schedules.runs import failure, shown
from tests.support.decidable import put
from tests.support.homes import dagster_instance, fresh_home
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.outbox.relay import RESIDENT


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture(autouse=True)
def home(scratch: Path) -> Iterator[Path]:
    with fresh_home(scratch, TICKETFLOW_FIRST_MONTH="2014-10") as home:
        home.mkdir()
        yield home


@pytest.fixture
def resources(url: URL) -> dict[str, Any]:
    return {
        "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
        "clock": ClockResource(fixed_at=NOW.isoformat()),
        "delivery": DeliveryResource(),
    }


def look(instance: dg.DagsterInstance, resources: dict[str, Any]) -> dg.RunRequest | str:
    """The run that the sensor requests, or why it skips."""
    needed = {name: resources[name] for name in ("database", "delivery")}
    with dg.build_sensor_context(instance=instance, resources=needed) as context:
        data = outbox_relay.evaluate_tick(context)
    return data.skip_message or (data.run_requests or [])[0]


def test_what_a_resident_relay_is_at_is_left_to_it_for_a_minute(
    engine: Engine, url: URL, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    resident = connect_engine(url, f"ticketflow {RESIDENT}", connections=1)
    with resident.connect():
        add(engine, "a")
        assert look(instance, resources) == "A resident relay is delivering."
        change(engine, "a", "available_at = clock_timestamp() - interval '2 minutes'")
        assert isinstance(look(instance, resources), dg.RunRequest)
    resident.dispose()


def test_a_run_is_requested_when_an_event_may_go(
    engine: Engine, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    assert look(instance, resources) == "No event may go."
    add(engine, "a")
    assert isinstance(look(instance, resources), dg.RunRequest)
    change(engine, "a", "available_at = clock_timestamp() + interval '1 hour'")
    assert look(instance, resources) == "No event may go."


def test_no_run_is_requested_while_one_is_queued_or_running(
    engine: Engine, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    add(engine, "a")
    run = instance.create_run_for_job(relay_outbox_job, status=dg.DagsterRunStatus.STARTED)
    try:
        assert look(instance, resources) == f"Run {run.run_id} is delivering."
    finally:
        instance.delete_run(run.run_id)


def test_a_run_delivers_what_is_due_and_shows_what_it_did(
    engine: Engine, instance: dg.DagsterInstance, resources: dict[str, Any], home: Path
) -> None:
    for name in ("a", "b"):
        add(engine, name)
    result = relay_outbox_job.execute_in_process(instance=instance, resources=resources)
    metadata = shown(result)
    assert (metadata["delivered"], metadata["left"], metadata["dead"]) == (2, 0, 0)
    assert states(engine) == {"a": "DELIVERED", "b": "DELIVERED"}
    assert len((home / "outbox.jsonl").read_text().splitlines()) == 2


def test_a_run_that_hangs_is_ended_and_old_runs_go(instance: dg.DagsterInstance) -> None:
    # The budget, the longest attempt at a file, and a minute.
    assert relay_outbox_job.tags["dagster/max_runtime"] == "170"
    assert relay_outbox_job.name in PRUNED_JOBS


def test_dead_events_are_redriven_by_a_run(
    engine: Engine, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    for name in ("a", "b"):
        put(engine, name, "DEAD", kind="EventClosed")
    needed = {name: resources[name] for name in ("database", "delivery")}

    def redrive(**config: Any) -> dg.ExecuteInProcessResult:
        return redrive_outbox_job.execute_in_process(
            instance=instance,
            resources=needed,
            run_config={"ops": {"redrive_outbox": {"config": config}}},
            raise_on_error=False,
        )

    assert "Say which dead events to redrive" in failure(redrive())
    assert "There is no destination 'nowhere'" in failure(redrive(destination="nowhere"))
    assert shown(redrive(destination="file", event_type="EventClosed"))["redriven"] == 2
    assert states(engine) == {"a": "PENDING", "b": "PENDING"}
