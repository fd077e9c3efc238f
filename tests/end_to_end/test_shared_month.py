"""A month that two runs share, through a real daemon: the second is requested by a sensor, and is killed half-way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.end_to_end import sales
from tests.end_to_end.back_office import FINISHED, BackOffice, Run, opened, worker_of
from tests.end_to_end.sales import ORGANIZATIONS, due, posted

ALONE, SHARED = "2024-02", "2024-03"

# More than the patience of what a test waits for.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def office(scratch: Path) -> Iterator[BackOffice]:
    """A back office in which months wait, and only the sensor of further runs watches."""
    home = scratch / "office"
    with opened(home, TICKETFLOW_FIRST_MONTH=sales.FIRST_MONTH, TICKETFLOW_FIXED_CLOCK=sales.NOW) as office:
        office.leave_to_people("settlement_shards")
        sales.sell(office.engine)
        yield office


def test_a_run_that_is_killed_while_it_helps_leaves_a_month_that_is_the_same_as_one_settled_alone(
    office: BackOffice,
) -> None:
    alone = office.wait_for_run(office.materialize(ALONE, chunk_size=1, workers=1))
    assert alone.status == "SUCCESS", office.failure(alone.id)
    assert "who did what" not in office.metadata(ALONE)

    # A chunk each three seconds: the other has a minute to come and to do some of them.
    leader = office.materialize(SHARED, chunk_size=1, workers=1, chunk_pause=3.0, shards=2)
    helper = office.wait_for(lambda: helpers(office), "the run that helps")[0]
    assert (helper.tags["ticketflow/pass"], helper.tags["ticketflow/shard"]) == ("1", "2")
    assert "dagster/partition" not in helper.tags
    process = office.wait_for(lambda: worker_of(office, helper.id), "its worker")
    office.wait_for(lambda: chunks_of(office, helper.id), "its first chunk")
    process.kill()

    led = office.wait_for_run(leader)
    assert led.status == "SUCCESS", office.failure(led.id)
    assert posted(office.engine, SHARED) == due(SHARED)
    assert posted(office.engine, ALONE) == due(ALONE)
    metadata = office.metadata(SHARED)
    assert metadata["organizations"]["intValue"] == ORGANIZATIONS
    assert metadata["net EUR (minor units)"]["intValue"] == sum(due(SHARED).values())
    assert {record["run"] for record in hands(metadata)} >= {leader, helper.id}
    assert sum(record["chunks"] for record in hands(metadata)) == ORGANIZATIONS

    assert office.wait_for_run(helper.id).status == "FAILURE"
    again = office.wait_for(lambda: office.runs(dagster_parent_run_id=helper.id), "its retry")[0]
    again = office.wait_for_run(again.id)
    assert again.status == "SUCCESS", office.failure(again.id)
    assert posted(office.engine, SHARED) == due(SHARED)
    # It was requested once for the pass, whatever became of it; the other is the retry.
    assert {run.id for run in helpers(office)} == {helper.id, again.id}
    assert all(run.status in FINISHED for run in helpers(office))


def helpers(office: BackOffice) -> list[Run]:
    """The further runs of the month."""
    return office.runs(ticketflow_month=SHARED)


def chunks_of(office: BackOffice, run_id: str) -> int:
    """How many chunks a run has done."""
    with office.engine.connect() as connection:
        query = text("SELECT count(*) FROM settlement_chunk WHERE run_id = :run")
        return int(connection.execute(query, {"run": run_id}).scalar_one())


def hands(metadata: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of the table that says who did what."""
    return [json.loads(record) for record in metadata["who did what"]["table"]["records"]]
