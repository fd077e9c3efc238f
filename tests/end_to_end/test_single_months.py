"""Single months through a real daemon: bad, refused, waited for, killed, and settled by an engineer's own command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.end_to_end import sales
from tests.end_to_end.back_office import BIN, BackOffice, opened, worker_of
from tests.end_to_end.sales import ORGANIZATIONS, drain, due, flood, posted

REPOSITORY = Path(__file__).resolve().parents[2]
BAD_MONTH = "2024-04"

# More than the patience of what a test waits for.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def office(scratch: Path) -> Iterator[BackOffice]:
    """A back office in which months wait. Their schedules are off: their hours may come while the tests run."""
    home = scratch / "office"
    with opened(
        home,
        TICKETFLOW_FIRST_MONTH=sales.FIRST_MONTH,
        TICKETFLOW_FIXED_CLOCK=sales.NOW,
        TICKETFLOW_PARKED_LIMIT="0",
    ) as office:
        office.leave_to_people()
        sales.sell(office.engine)
        yield office


def test_a_bad_month_is_red_says_why_and_is_green_once_it_is_fixed(office: BackOffice) -> None:
    flood(office.engine, BAD_MONTH)
    bad = office.wait_for_run(office.materialize(BAD_MONTH))
    assert bad.status == "FAILURE"
    assert "hall-1 fails too (bigint out of range)" in office.failure(bad.id)

    drain(office.engine, BAD_MONTH)
    again = office.wait_for_run(office.execute_again(bad.id))

    assert again.status == "SUCCESS", office.failure(again.id)
    assert again.tags["dagster/parent_run_id"] == bad.id
    assert posted(office.engine, BAD_MONTH) == due(BAD_MONTH)
    metadata = office.metadata(BAD_MONTH)
    assert metadata["organizations"]["intValue"] == ORGANIZATIONS
    assert metadata["net EUR (minor units)"]["intValue"] == sum(due(BAD_MONTH).values())


def test_a_month_that_is_not_over_everywhere_is_refused_by_name(office: BackOffice) -> None:
    run = office.wait_for_run(office.materialize("2025-06"))
    assert run.status == "FAILURE"
    assert office.failure(run.id) == (
        "2025-06 is not over in Pacific/Pago_Pago before 2025-07-01 13:00 (Europe/Madrid), "
        "and it is 2025-07-01 07:00; settle it from then on."
    )
    assert posted(office.engine, "2025-06") == {}


def test_a_month_whose_writers_do_not_end_is_red_until_they_have(office: BackOffice) -> None:
    with office.engine.connect() as writer:
        writer.execute(text("LOCK TABLE money_movement IN ROW EXCLUSIVE MODE"))  # as an INSERT that is not committed
        red = office.wait_for_run(office.materialize("2024-10", writer_wait=0.5))
    assert "Still writing movements after 0.5 s" in office.failure(red.id)

    green = office.wait_for_run(office.execute_again(red.id))
    assert green.status == "SUCCESS"
    assert posted(office.engine, "2024-10") == due("2024-10")


def test_a_run_killed_half_way_is_noticed_and_run_again_from_where_it_was(office: BackOffice) -> None:
    month = "2024-11"
    killed = office.materialize(month, chunk_size=1, chunk_pause=0.5)
    # Looked up first: the chunks take a few seconds, and it must not end before it is killed.
    worker = office.wait_for(lambda: worker_of(office, killed), "its worker")
    office.wait_for(lambda: posted(office.engine, month), "the first chunks")
    worker.kill()

    assert office.wait_for_run(killed).status == "FAILURE"
    again = office.wait_for(lambda: office.runs(dagster_parent_run_id=killed), "the retry")[0]
    again = office.wait_for_run(again.id)

    assert again.status == "SUCCESS", office.failure(again.id)
    assert office.run(killed).ended <= again.started
    assert posted(office.engine, month) == due(month)
    assert runs_that_posted(office, month) == {killed, again.id}


@pytest.mark.parametrize(
    ("command", "month"),
    [
        ("dagster asset materialize -m ticketflow_orch.definitions --select monthly_settlement --partition", "2024-08"),
        ("dg launch --assets monthly_settlement --partition", "2024-09"),
        ("dagster job launch -w workspace.yaml -j monthly_settlement_job --tags", "2024-07"),
    ],
    ids=["dagster asset materialize", "dg launch", "dagster job launch"],
)
def test_an_engineers_plain_command_settles_a_month_on_the_same_instance(
    office: BackOffice, command: str, month: str
) -> None:
    which = json.dumps({"dagster/partition": month}) if command.endswith("--tags") else month
    shell = f"PATH={BIN}:$PATH; variables=$(ticketflow env); eval \"$variables\"; {command} '{which}'"
    subprocess.run(["bash", "-ec", shell], check=True, env=office.environment, cwd=REPOSITORY, timeout=120)
    (run,) = office.runs(dagster_partition=month)
    assert office.wait_for_run(run.id).status == "SUCCESS"
    assert posted(office.engine, month) == due(month)
    assert office.metadata(month)["organizations"]["intValue"] == ORGANIZATIONS


def runs_that_posted(office: BackOffice, month: str) -> set[str]:
    """Every run that the month's entries name."""
    with office.engine.connect() as connection:
        found = connection.execute(
            text("SELECT DISTINCT run_id FROM ledger_entry WHERE month = :month"), {"month": f"{month}-01"}
        )
        return set(found.scalars())
