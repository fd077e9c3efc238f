"""Payouts as Dagster sees them: materializations, checks, refusals, and the schedule that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from assets import PAYOUT_CHECKS, payouts
from resources import ClockResource, DatabaseResource
from schedules.payouts import payouts_job, payouts_schedule
from tests.schedules.runs import months_tick
from tests.support.asset_runs import checks_of, failure_of
from tests.support.homes import dagster_instance
from tests.support.payable import close_owing, close_with, owing, pay_from, request, rows
from tests.support.rows import add_organization, instant
from tests.support.sql_statements import execute
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings

JANUARY, FEBRUARY, MARCH = (Month(2026, number) for number in (1, 2, 3))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """What a test sets is forgotten afterwards."""
    yield
    settings.cache_clear()


def materialize(
    url: URL, instance: dg.DagsterInstance, first: Month, last: Month | None = None
) -> dg.ExecuteInProcessResult:
    """A run of one month, or of a backfill from `first` to `last`."""
    tags = {"dagster/asset_partition_range_start": str(first), "dagster/asset_partition_range_end": str(last)}
    return dg.materialize(
        [payouts, *PAYOUT_CHECKS],
        instance=instance,
        partition_key=None if last else str(first),
        tags=tags if last else {},
        resources={
            "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
            "clock": ClockResource(fixed_at="2026-05-03T06:30:00Z"),
        },
        raise_on_error=False,
    )


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """What each month shows."""
    return {
        str(materialization.partition): {name: value.value for name, value in materialization.metadata.items()}
        for materialization in result.asset_materializations_for_node("payouts")
    }


def test_a_month_shows_what_it_pays_by_currency_and_how_far_that_is(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine)
    close_with(engine, [(organization, "EUR", 88_000), (organization, "KWD", 12_345)])
    result = materialize(url, instance, MARCH)
    assert result.success
    shown = metadata_of(result)["2026-03"]
    assert shown["summary"] == "2026-03: 2 payouts requested."
    records = [dict(record.data) for record in shown["payouts"].records]
    assert [(one["currency"], one["total"], one["payouts"], one["in progress"]) for one in records] == [
        ("EUR", "880.00", 1, "880.00"),
        ("KWD", "12.345", 1, "12.345"),
    ]
    assert shown["requested EUR, months so far"].endswith("**880.00**")
    assert (shown["requested"], shown["requested KWD (minor units)"]) == (2, 12_345)
    assert shown["paid out KWD (minor units)"] == 0
    assert rows(engine, "SELECT DISTINCT run_id FROM payout") == [(result.run_id,)]
    assert set(checks_of(result).values()) == {(True, "No month is bad.")}
    execute(engine, "UPDATE payout SET state = 'CONFIRMED', answered_at = now() WHERE currency = 'KWD'")
    again = metadata_of(materialize(url, instance, MARCH))["2026-03"]
    assert again["summary"] == "2026-03: 2 were there before."
    assert [again[f"paid out {currency} (minor units)"] for currency in ("EUR", "KWD")] == [0, 12_345]


def test_a_backfill_is_one_run_that_shows_each_month_by_itself(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    for month, amount in ((JANUARY, 100), (FEBRUARY, 1_000), (MARCH, 1_001)):
        owing(engine, amount, month)
    result = materialize(url, instance, JANUARY, MARCH)
    assert result.success
    shown = metadata_of(result)
    assert {month: (one["requested"], one["held"]) for month, one in shown.items()} == {
        "2026-01": (1, 0),
        "2026-02": (0, 1),
        "2026-03": (0, 1),
    }
    assert "held for review" in shown["2026-02"]["summary"]
    assert shown["2026-02"]["payouts"].records[0].data["held"] == "10.00"


def test_a_month_that_is_not_closed_is_refused_in_one_sentence(url: URL, instance: dg.DagsterInstance) -> None:
    result = materialize(url, instance, MARCH)
    assert not result.success
    assert failure_of(result) == ("2026-03 was never settled, and only closed months are paid; close its books first.")


def test_a_route_that_could_pay_twice_is_refused_before_anything_is_written(
    engine: Engine, url: URL, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owing(engine)
    path = tmp_path / "delivery.toml"
    path.write_text("""
        [destinations.file]
        transport = "file"
        [routes.default]
        destination = "file"
        in_doubt = "resend"
        remembers = "PT24H"
    """)
    monkeypatch.setenv("TICKETFLOW_DELIVERY", str(path))
    settings.cache_clear()
    assert failure_of(materialize(url, instance, MARCH)) == (
        f"{path}: routes.PayoutRequested.in_doubt = 'resend' could do twice what nobody can undo; "
        "write 'look_up' or 'hold'."
    )
    assert rows(engine, "SELECT * FROM payout") == []


def test_a_month_before_the_first_that_is_paid_says_plainly_that_nobody_is(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    owing(engine)
    pay_from(engine, None)
    shown = metadata_of(materialize(url, instance, MARCH))["2026-03"]
    assert shown["summary"] == ("**Nobody is paid: payouts are off; `ticketflow payouts from YYYY-MM` turns them on.**")
    assert shown["requested"] == 0


@pytest.mark.every_server
def test_the_checks_name_what_is_missing_and_what_is_in_doubt(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    close_owing(engine, {add_organization(engine, external_ref="skipped"): 5}, JANUARY)
    close_owing(engine, {add_organization(engine, external_ref="lost"): 7}, FEBRUARY)
    request(engine, FEBRUARY)
    execute(engine, "UPDATE payout SET state = 'IN_DOUBT', reason = 'no answer'")
    owing(engine, month=MARCH)
    result = materialize(url, instance, FEBRUARY)
    # March waits for its turn; January was passed over.
    assert checks_of(result) == {
        "paid_what_is_payable": (False, "2026-01: 1"),
        "nothing_in_doubt": (False, "2026-02: 1"),
    }
    breaches = [
        dict(record.data)
        for check in result.get_asset_check_evaluations()
        for record in check.metadata["breaches"].value.records  # type: ignore[union-attr]
    ]
    assert {(one["organization"], str(one["what"]).split(" of ")[-1]) for one in breaches} == {
        ("skipped", "payable 5, requested 0"),
        ("lost", "7: no answer"),
    }


def tick(url: URL, instance: dg.DagsterInstance) -> dict[str, str] | str:
    """The tags of the run that the schedule requests at 06:30 on 3 May, or why it skips."""
    return months_tick(payouts_schedule, url, instance, instant("2026-05-03T04:30"))


def test_the_schedule_asks_for_all_months_that_are_closed_and_not_paid(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    assert tick(url, instance) == "Every closed month is paid, or pays nobody."
    for month in (JANUARY, FEBRUARY, MARCH):
        owing(engine, month=month)
    request(engine, FEBRUARY)
    requested = tick(url, instance)
    assert requested == {
        "ticketflow/scheduled_for": "2026-05-03T04:30:00+00:00",
        "dagster/asset_partition_range_start": "2026-01",
        "dagster/asset_partition_range_end": "2026-03",
        "dagster/schedule_name": "payouts_schedule",
    }
    request(engine, JANUARY)
    assert isinstance(one := tick(url, instance), dict)
    assert one["dagster/partition"] == "2026-03"


def test_the_schedule_leaves_a_running_job_alone(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    owing(engine)
    job = build_definitions({"database": DatabaseResource(url="postgresql:///any")}).resolve_job_def(payouts_job.name)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert run.run_id in str(tick(url, instance))


def test_a_run_that_the_schedule_asked_for_pays_the_months_of_its_span(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    for month in (JANUARY, FEBRUARY):
        owing(engine, month=month)
    tags = tick(url, instance)
    assert isinstance(tags, dict)
    database = DatabaseResource(url=url.render_as_string(hide_password=False))
    job = build_definitions({"database": database}).resolve_job_def(payouts_job.name)
    assert job.execute_in_process(instance=instance, tags=tags).success
    assert rows(engine, "SELECT month, amount FROM payout ORDER BY month") == [
        (JANUARY.first_day, 88_000),
        (FEBRUARY.first_day, 88_000),
    ]
    assert rows(engine, "SELECT job, outcome FROM job_firing") == [("payouts", "ACCEPTED")]
