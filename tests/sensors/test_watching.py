"""What the sensors tell, and that they tell it once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from resources import DatabaseResource
from schedules import ALWAYS_REQUESTING, SCHEDULES, close_events_job, monthly_settlement_job, settlement_schedule
from sensors import SENSORS, missed_windows
from sensors.missed_windows import was_in_a_run
from tests.sensors.watch import FIVE_MINUTES, Watch
from tests.support.books import close
from tests.support.homes import dagster_instance
from tests.support.payable import pay_from
from tests.support.poison import refuse
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.jobs.claims import claim
from ticketflow_orch.jobs.firings import Firing, record, window_tags
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.alerts import standing
from ticketflow_orch.periods.state import ready_since
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import expire_reservations

TICK = instant("2026-06-01T02:30")
MISSED = "WindowMissed close_events"


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def watch(url: URL, instance: dg.DagsterInstance) -> Watch:
    return Watch(url, instance)


def fire(engine: Engine, job: str, at: datetime, run_id: str = "run-1", **values: Any) -> None:
    with transaction(engine) as connection:
        record(connection, Firing(job, at, run_id, **values))


def alerts(engine: Engine, about: str) -> list[str]:
    """The alerts in the outbox that begin with `about`, without that."""
    with engine.connect() as connection:
        keys = connection.execute(
            text("""
                SELECT aggregate_id FROM outbox_event
                WHERE aggregate_type = 'alert' AND event_type <> 'AlertResolved' ORDER BY id
            """)
        )
        return [key.removeprefix(about).strip() for key in keys.scalars() if key.startswith(about)]


def test_a_duplicate_window_is_told_once_whatever_comes_on_top(engine: Engine, watch: Watch) -> None:
    for number in range(3):
        fire(engine, "close_events", TICK, f"run-{number}")
    fire(engine, "close_events", TICK + timedelta(days=1))
    key = "close_events 2026-06-01T02:30:00+00:00"
    assert watch.look("duplicate_firings", TICK) == f"Alerted: DuplicateFiring {key}"
    fire(engine, "close_events", TICK, "run-9")
    assert watch.look("duplicate_firings", TICK) == "All well."
    assert alerts(engine, "DuplicateFiring") == [key]


def test_a_retry_is_not_told(engine: Engine, watch: Watch) -> None:
    fire(engine, "close_events", TICK)
    fire(engine, "close_events", TICK, "run-2", parent_run_id="run-1")
    assert watch.look("duplicate_firings", TICK) == "All well."


def test_a_stale_claim_is_failed_and_told_once(engine: Engine, watch: Watch) -> None:
    claim(engine, "close_events", "key", lease=60)
    assert watch.look("stale_claims", TICK) == "All well."
    with engine.begin() as connection:
        connection.execute(text("UPDATE job_execution SET lease_until = clock_timestamp() - interval '1 second'"))
    assert watch.look("stale_claims", TICK) == "Alerted: StaleClaim close_events key attempt 1"
    assert watch.look("stale_claims", TICK) == "All well."
    assert alerts(engine, "StaleClaim") == ["close_events key attempt 1"]


def test_a_daily_window_without_a_firing_is_told_once_after_its_patience(engine: Engine, watch: Watch) -> None:
    before = TICK - timedelta(minutes=31)
    watch.look_on(before, TICK + timedelta(minutes=14))
    assert alerts(engine, MISSED) == []
    watch.look_on(TICK + timedelta(minutes=19), TICK + timedelta(hours=2))
    assert alerts(engine, MISSED) == ["2026-06-01T02:30:00+00:00"]


def test_a_daily_window_that_started_or_waits_for_its_turn_is_not_missed(
    engine: Engine, watch: Watch, instance: dg.DagsterInstance
) -> None:
    fire(engine, "close_events", TICK)
    tomorrow = (TICK + timedelta(days=1)).astimezone(instant("2026-06-01T00:00+02:00").tzinfo)
    waiting = instance.create_run_for_job(
        close_events_job, status=dg.DagsterRunStatus.NOT_STARTED, tags=window_tags(tomorrow)
    )
    try:
        for begin in (TICK, TICK + timedelta(days=1)):
            watch.look_on(begin - FIVE_MINUTES, begin + timedelta(minutes=30))
    finally:
        instance.delete_run(waiting.run_id)
    assert alerts(engine, MISSED) == []


def test_nothing_is_judged_that_was_over_before_the_first_look(engine: Engine, watch: Watch) -> None:
    assert watch.look("missed_windows", TICK + timedelta(minutes=1)) == "Windows are judged from now on."
    watch.look_on(TICK + timedelta(minutes=6), TICK + timedelta(hours=1))
    assert alerts(engine, MISSED) == []


def test_a_clock_that_was_a_day_ahead_hides_no_window_of_that_day(engine: Engine, watch: Watch) -> None:
    watch.look("missed_windows", TICK + timedelta(days=1))
    watch.look_on(TICK - FIVE_MINUTES, TICK + timedelta(hours=1))
    assert alerts(engine, MISSED) == ["2026-06-01T02:30:00+00:00"]


def test_after_days_without_a_daemon_each_missed_window_is_told_once_and_the_one_made_up_for_is_not(
    engine: Engine, watch: Watch
) -> None:
    watch.look_on(TICK - timedelta(hours=1), TICK - timedelta(minutes=30))
    up_again = TICK + timedelta(days=3, hours=2)
    assert watch.look("missed_windows", up_again).startswith("Nobody has looked since 2026-06-01T02:00:00+00:00")
    # Dagster makes up for the newest of the missed ticks.
    fire(engine, "close_events", TICK + timedelta(days=3))
    watch.look_on(up_again + FIVE_MINUTES, up_again + timedelta(hours=1))
    # One alert, which says how many there were.
    assert alerts(engine, MISSED) == ["2026-06-01T02:30:00+00:00"]
    with engine.connect() as connection:
        assert ("close_events", 3) in [(one.subject, one.occurrences) for one in standing(connection)]
    fire(engine, "close_events", TICK + timedelta(days=4))
    assert watch.look("alerts_watch", up_again) == "Over: WindowMissed close_events. Repeated: 0."


def test_the_settlements_window_is_missed_when_a_month_was_due_and_nobody_took_it_on(
    engine: Engine, watch: Watch
) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-04-10T10:00")
    settle_at("2026-05-03T03:00", engine, Month(2026, 4))
    day_2 = instant("2026-06-02T03:00")
    watch.look_on(day_2 - timedelta(minutes=45), day_2 + timedelta(hours=1))
    assert alerts(engine, "WindowMissed monthly_settlement") == ["2026-06-02T03:00:00+00:00 2026-05"]


def test_the_settlements_window_is_not_missed_when_its_run_started(engine: Engine, watch: Watch) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-05-10T10:00")
    day_2 = instant("2026-06-02T03:00")
    fire(engine, "monthly_settlement", day_2, partition="2026-05")
    watch.look_on(day_2 - timedelta(minutes=45), day_2 + timedelta(hours=1))
    assert alerts(engine, "WindowMissed monthly_settlement") == []


@pytest.mark.parametrize(
    ("status", "minutes_after_the_tick", "was"),
    [
        (dg.DagsterRunStatus.STARTED, -60, True),
        (dg.DagsterRunStatus.NOT_STARTED, 1, True),
        (dg.DagsterRunStatus.STARTED, 60, False),
        (dg.DagsterRunStatus.SUCCESS, 1, True),
        (dg.DagsterRunStatus.SUCCESS, -60, False),
    ],
)
def test_a_month_was_in_a_run_at_a_tick_when_one_had_not_ended_or_came_soon_after(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, minutes_after_the_tick: int, was: bool
) -> None:
    location = build_definitions({"database": DatabaseResource(url="postgresql:///any")})
    run = instance.create_run_for_job(
        location.resolve_job_def(monthly_settlement_job.name), tags={"dagster/partition": "2026-05"}, status=status
    )
    record = instance.get_run_record_by_id(run.run_id)
    assert record is not None
    tick = record.create_timestamp - timedelta(minutes=minutes_after_the_tick)
    found = was_in_a_run(instance, Month(2026, 5), tick)
    instance.delete_run(run.run_id)
    assert found == was


def settle_at(at: str, engine: Engine, month: Month) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("""
                INSERT INTO settlement_period (month, state, settled_at, settled_by)
                VALUES (:month, 'SETTLED', :at, 'test')
            """),
            {"month": month.first_day, "at": instant(at)},
        )


def test_reservations_that_wait_for_three_minutes_are_told_of_once(engine: Engine, watch: Watch) -> None:
    event = add_event(engine, add_organization(engine), ends_at=TICK + timedelta(days=30))
    add_reservation(engine, event, expires_at=TICK)
    add_reservation(engine, event, expires_at=TICK + timedelta(seconds=1))
    watch.look("missed_windows", TICK - FIVE_MINUTES)
    assert watch.look("missed_windows", TICK + timedelta(minutes=3)) == "All well."
    told = watch.look("missed_windows", TICK + timedelta(minutes=3, seconds=1))
    assert told == "Alerted: WorkOverdue expire_reservations 2026-06-01T02:30:00+00:00"
    with engine.begin() as connection:
        connection.execute(text("UPDATE reservation SET status = 'CANCELLED' WHERE expires_at = :at"), {"at": TICK})
    assert watch.look("missed_windows", TICK + timedelta(minutes=8)) == "All well."
    with engine.connect() as connection:
        assert standing(connection, ["WorkOverdue"]) != ()
    with engine.begin() as connection:
        connection.execute(text("UPDATE reservation SET status = 'CANCELLED'"))
    watch.look("missed_windows", TICK + timedelta(minutes=13))
    with engine.connect() as connection:
        assert standing(connection, ["WorkOverdue"]) == ()


def test_reminders_that_wait_for_three_quarters_of_an_hour_are_told_of_once(engine: Engine, watch: Watch) -> None:
    start = TICK + timedelta(hours=24)
    event = add_event(engine, add_organization(engine), starts_at=start, ends_at=start + timedelta(hours=1))
    bought = TICK - timedelta(days=9)
    add_reservation(engine, event, status="CONFIRMED", created_at=bought, confirmed_at=bought)
    watch.look_on(TICK - FIVE_MINUTES, TICK + timedelta(minutes=45))
    assert alerts(engine, "WorkOverdue") == []
    watch.look_on(TICK + timedelta(minutes=46), TICK + timedelta(hours=2))
    assert alerts(engine, "WorkOverdue") == ["send_reminders 2026-06-01T02:30:00+00:00"]


def test_an_event_in_an_unknown_zone_blinds_nobody(engine: Engine, watch: Watch) -> None:
    start = TICK + timedelta(hours=9)
    organization = add_organization(engine)
    unknown = add_event(engine, organization, timezone="UTC+2", starts_at=start, ends_at=start + timedelta(hours=1))
    add_reservation(engine, unknown, status="CONFIRMED", confirmed_at=TICK - timedelta(days=9))
    watch.look_on(TICK - timedelta(minutes=31), TICK + timedelta(hours=2))
    assert alerts(engine, MISSED) == ["2026-06-01T02:30:00+00:00"]
    assert alerts(engine, "WorkOverdue") == []


def test_months_that_could_be_closed_or_stated_for_three_days_are_told_of_once(engine: Engine, watch: Watch) -> None:
    pay_from(engine, None)
    add_movement(engine, add_organization(engine), 100, "2026-04-10T10:00")
    settle(engine, Month(2026, 4))
    settled = ready(engine)
    watch.look("missed_windows", settled + timedelta(days=3) - FIVE_MINUTES)
    watch.look_on(settled + timedelta(days=3), settled + timedelta(days=3, minutes=10))
    close(engine, Month(2026, 4))
    closed = ready(engine)
    watch.look_on(settled + timedelta(days=3, minutes=15), closed + timedelta(days=3, minutes=30))
    assert [key.split(" ")[0] for key in alerts(engine, "WorkOverdue")] == ["close_books", "statements"]


def ready(engine: Engine) -> datetime:
    with engine.connect() as connection:
        since = ready_since(connection, Month(2026, 4))
    assert since is not None
    return since


def test_the_windows_or_the_work_of_every_schedule_are_watched() -> None:
    watched = {schedule.name for schedule in ALWAYS_REQUESTING} | {settlement_schedule.name}
    assert {schedule.name for schedule in SCHEDULES} - watched == {
        "audit_schedule",  # without an effect, and so without a firing
        "expire_reservations_schedule",
        "send_reminders_schedule",
        "close_books_schedule",
        "payouts_schedule",
        "statements_schedule",
    }
    assert missed_windows in SENSORS


# --- Bad rows blind no sensor


def test_a_reservation_that_cannot_be_expired_hides_no_standstill_that_comes_after_it(
    engine: Engine, watch: Watch
) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    add_reservation(engine, evening, public_ref="bad", expires_at=TICK)
    refuse(engine, "reservation", "NEW.public_ref = 'bad'", "the seat map is locked")
    watch.look("missed_windows", TICK)
    for minutes in (1, 5, 9):
        expire_reservations(engine, LifecycleRules(TICK + timedelta(minutes=minutes), "run"))
    assert [watch.look("missed_windows", TICK + number * FIVE_MINUTES) for number in (1, 2)] == ["All well."] * 2
    # From here on nobody expires anything.
    due = TICK + timedelta(minutes=15)
    add_reservation(engine, evening, expires_at=due)
    watch.look_on(due, due + timedelta(minutes=30))
    assert alerts(engine, "WorkOverdue") == [f"expire_reservations {due.isoformat()}"]


def test_an_unknown_zone_and_a_row_that_cannot_be_read_keep_no_window_from_being_missed(
    engine: Engine, watch: Watch
) -> None:
    olympus = add_organization(engine, timezone="Mars/Olympus")
    add_movement(engine, olympus, 100, "2026-04-10T10:00")
    evening = add_event(engine, olympus, timezone="Mars/Olympus", starts_at=TICK, ends_at=TICK + timedelta(hours=2))
    add_reservation(engine, evening, status="CONFIRMED", confirmed_at=instant("2026-05-01T00:00"))
    execute(engine, "ALTER TABLE reservation DROP CONSTRAINT reservation_instants_check")
    add_reservation(engine, evening)
    execute(engine, "UPDATE reservation SET expires_at = '-infinity' WHERE status = 'ACTIVE'")
    watch.look_on(TICK - timedelta(minutes=31), TICK + timedelta(hours=1))
    assert alerts(engine, MISSED) == ["2026-06-01T02:30:00+00:00"]
