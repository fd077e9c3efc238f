"""The jobs on schedules: when a tick requests a run, and that a window has its effect once, however often it starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from schedules import SCHEDULES, close_events_job, expire_reservations_job, send_reminders_job
from tests.schedules.runs import Office, failure, shown
from tests.support.homes import dagster_instance
from tests.support.poison import poison
from tests.support.rows import add_reservation, instant
from tests.support.scheduled_work import EFFECT, NOW, add_work, effects, firings
from tests.support.sql_statements import execute
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.jobs.claims import claim
from ticketflow_orch.months import zone

JOBS = [close_events_job, expire_reservations_job, send_reminders_job]
NAMES = [job.name for job in JOBS]
ZONES = ["Europe/Madrid", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/New_York", "Australia/Lord_Howe", "UTC"]


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """Shared, since it is dear: no test leaves a run in it that has not ended."""
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def office(url: URL, instance: dg.DagsterInstance) -> Office:
    return Office(url, instance)


@pytest.mark.parametrize("job", NAMES)
def test_a_window_that_starts_again_has_no_further_effect_and_shows_the_result_of_the_first(
    engine: Engine, office: Office, job: str
) -> None:
    add_work(engine)
    first = office.run(job, NOW)
    assert (first["status"], first["firing"], first["window"]) == ("done", "accepted", NOW.isoformat())
    again = office.run(job, NOW + timedelta(minutes=3), tick=NOW)
    assert (again["status"], again["firing"]) == ("repeated", "duplicate")
    assert {name: again[name] for name in again if name not in {"status", "firing"}} == {
        name: first[name] for name in first if name != "attempt" and name not in {"status", "firing"}
    }
    assert effects(engine) == EFFECT[job]
    assert firings(engine, job) == ["ACCEPTED", "DUPLICATE"]


@pytest.mark.parametrize("job", NAMES)
def test_the_next_window_finds_nothing_left(engine: Engine, office: Office, job: str) -> None:
    add_work(engine)
    office.run(job, NOW)
    assert office.run(job, NOW + timedelta(minutes=15))["status"] == "done"
    assert effects(engine) == EFFECT[job]


@pytest.mark.parametrize("job", NAMES)
def test_a_run_of_a_window_that_somebody_is_at_leaves_it_to_them_and_succeeds(
    engine: Engine, office: Office, job: str
) -> None:
    add_work(engine)
    claim(engine, job.removesuffix("_job"), NOW.isoformat())
    skipped = office.run(job, NOW)
    assert skipped["status"] == "skipped"
    assert "/" in skipped["owner"]
    assert effects(engine) == []


def test_a_launch_by_hand_is_a_window_of_its_own_that_its_re_execution_shares(engine: Engine, office: Office) -> None:
    add_work(engine)
    first, second = (office.attempt(NAMES[0], NOW, {}) for _ in range(2))
    assert shown(first)["window"] != shown(second)["window"]
    assert [shown(run)["firing"] for run in (first, second)] == ["accepted", "accepted"]
    lineage = {"dagster/parent_run_id": second.run_id, "dagster/root_run_id": second.run_id}
    assert shown(office.attempt(NAMES[0], NOW, lineage))["window"].split(" ")[1:] == ["by", "hand", second.run_id]


def test_a_re_execution_of_a_failed_run_does_the_work_and_is_no_duplicate(engine: Engine, office: Office) -> None:
    add_work(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE event RENAME TO elsewhere"))
    failed = office.attempt(NAMES[0], NOW, {"ticketflow/scheduled_for": NOW.isoformat()})
    assert not failed.success
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO event"))
    mended = office.run(NAMES[0], NOW, parent_run_id=failed.run_id, root_run_id=failed.run_id)
    assert (mended["status"], mended["firing"], mended["attempt"]) == ("done", "retry", 2)
    assert effects(engine) == EFFECT[NAMES[0]]


def test_a_row_that_cannot_be_done_is_left_out_and_told_once_however_often_it_is_met(
    engine: Engine, office: Office
) -> None:
    add_work(engine)
    with engine.connect() as connection:
        later = connection.execute(text("SELECT id FROM event WHERE external_ref = 'later'")).scalar_one()
    bad = add_reservation(engine, later, public_ref="bad", expires_at=NOW - timedelta(hours=1))
    poison(engine, "reservation", "NEW.public_ref = 'bad'", "UPDATE")
    for minute in range(2):
        run = office.run("expire_reservations_job", NOW + timedelta(minutes=minute))
        assert [row["id"] for row in run["bad"]] == [bad]
    assert effects(engine) == [("ReservationExpired", "held"), ("RowLeftOut", "RowLeftOut expire_reservations bad")]


def test_an_event_in_an_unknown_zone_is_told_once_though_no_other_reminder_is_due(
    engine: Engine, office: Office
) -> None:
    add_work(engine)
    execute(engine, "UPDATE event SET timezone = 'UTC+2' WHERE external_ref = 'later'")
    for minutes in (0, 15):
        at = NOW + timedelta(minutes=minutes)
        assert isinstance(office.tick("send_reminders_schedule", at), dg.RunRequest)
        assert [bad["name"] for bad in office.run("send_reminders_job", at)["bad"]] == ["later"]
    assert effects(engine) == [("RowLeftOut", "RowLeftOut send_reminders later")]


def test_a_window_that_is_no_instant_is_refused_in_one_sentence(engine: Engine, office: Office) -> None:
    run = office.attempt(NAMES[0], NOW, {"ticketflow/scheduled_for": "yesterday"})
    assert failure(run).startswith("'yesterday' is not an instant; write ISO 8601")
    assert firings(engine, NAMES[0]) == []


def test_a_daily_job_is_requested_whether_or_not_there_is_anything_to_do(office: Office) -> None:
    request = office.tick("close_events_schedule", NOW)
    assert isinstance(request, dg.RunRequest)
    assert request.tags["ticketflow/scheduled_for"] == NOW.isoformat()


@pytest.mark.parametrize(
    ("schedule", "why"),
    [("expire_reservations_schedule", "No reservation is due."), ("send_reminders_schedule", "No reminder is due.")],
)
def test_a_minute_job_is_requested_while_something_is_due(
    engine: Engine, office: Office, schedule: str, why: str
) -> None:
    add_work(engine)
    assert isinstance(office.tick(schedule, NOW), dg.RunRequest)
    office.run(schedule.replace("schedule", "job"), NOW)
    assert office.tick(schedule, NOW + timedelta(minutes=1)) == why


def test_a_kind_of_reminder_that_nobody_knows_yet_is_something_to_do(engine: Engine, office: Office) -> None:
    assert isinstance(office.tick("send_reminders_schedule", NOW), dg.RunRequest)
    office.run("send_reminders_job", NOW)
    assert office.tick("send_reminders_schedule", NOW) == "No reminder is due."


@pytest.mark.parametrize("job", JOBS, ids=NAMES)
@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_job_that_still_runs_or_waits_is_not_requested_again(
    engine: Engine, office: Office, job: dg.JobDefinition, status: dg.DagsterRunStatus
) -> None:
    add_work(engine)
    run = office.instance.create_run_for_job(job, status=status, tags={"ticketflow/scheduled_for": "then"})
    reason = office.tick(job.name.replace("job", "schedule"), NOW)
    office.instance.delete_run(run.run_id)
    assert reason == f"Run {run.run_id} (then) is still {status.value.lower().replace('_', ' ')}."


@pytest.mark.parametrize("timezone", ZONES)
def test_the_daily_window_comes_once_on_each_local_day_of_2026_at_half_past_four(timezone: str) -> None:
    schedule = next(one for one in SCHEDULES if one.name == "close_events_schedule")
    ticks = [tick.astimezone(zone(timezone)) for tick in year_of(schedule, timezone)]
    assert {(tick.hour, tick.minute) for tick in ticks} == {(4, 30)}
    assert [later.date() - earlier.date() for earlier, later in itertools.pairwise(ticks)] == [timedelta(days=1)] * 364


@pytest.mark.parametrize("timezone", ZONES)
@pytest.mark.parametrize(("name", "minutes"), [("expire_reservations_schedule", 1), ("send_reminders_schedule", 15)])
@pytest.mark.parametrize("day", ["2026-03-28T12:00", "2026-10-24T12:00", "2026-04-04T12:00"])
def test_the_windows_of_minute_jobs_are_equally_long_through_every_change_of_clocks(
    timezone: str, name: str, minutes: int, day: str
) -> None:
    schedule = next(one for one in SCHEDULES if one.name == name)
    ticks = schedule_execution_time_iterator(instant(day).timestamp(), schedule.cron_schedule, timezone)
    instants = [tick.astimezone(UTC) for tick in itertools.islice(ticks, 36 * 60 // minutes)]
    lengths = {later - earlier for earlier, later in itertools.pairwise(instants)}
    assert lengths == {timedelta(minutes=minutes)}


def year_of(schedule: dg.ScheduleDefinition, timezone: str) -> list[datetime]:
    """The ticks of 2026 by the calendar of `timezone`."""
    begins, ends = (datetime(year, 1, 1, tzinfo=zone(timezone)) for year in (2026, 2027))
    ticks = schedule_execution_time_iterator(begins.timestamp(), schedule.cron_schedule, timezone)
    return list(itertools.takewhile(lambda tick: tick < ends, ticks))


def test_each_job_is_bounded_by_a_pool_of_its_own_and_a_maximum_runtime(office: Office) -> None:
    repository = build_definitions().get_repository_def()
    bounds = {
        job.name: (job.all_node_defs[0].pool, job.tags["dagster/max_runtime"], job.executor_def.name)  # type: ignore[attr-defined]
        for job in map(repository.get_job, NAMES)
    }
    assert bounds == {
        "close_events_job": ("close_events", "3600", "in_process"),
        "expire_reservations_job": ("expire_reservations", "120", "in_process"),
        "send_reminders_job": ("send_reminders", "120", "in_process"),
    }
