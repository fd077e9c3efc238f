"""What the assets with a partition a month share: all that is done is shown, and every start is on record."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from assets import closed_books, monthly_settlement, payouts, settlement_statements
from assets.month_loop import each_month, launched_by
from assets.partitions import months
from resources import ClockResource, DatabaseResource, OutboxResource
from tests.support.asset_runs import failure_of
from tests.support.books import FEBRUARY, JANUARY, MARCH, settle_and_close
from tests.support.payable import rows
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import settle, tamper
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.preview import dry_run

CHAIN = (monthly_settlement, closed_books, payouts, settlement_statements)
TICK = {"ticketflow/scheduled_for": "2026-05-03T06:30:00+02:00"}


@pytest.fixture(autouse=True)
def paying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Statements are put into a folder of the test."""
    monkeypatch.setenv("TICKETFLOW_STATEMENTS_PLACE", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def backfill(
    asset: dg.AssetsDefinition, url: URL, instance: dg.DagsterInstance, first: str = "2026-01", last: str = "2026-03"
) -> dg.ExecuteInProcessResult:
    """One run of the asset for all months from `first` to `last`."""
    span = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return dg.materialize(
        [asset],
        instance=instance,
        partition_key=first if first == last else None,
        tags=TICK | ({} if first == last else span),
        resources={
            "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
            "clock": ClockResource(fixed_at="2026-05-03T06:30:00Z"),
            "outbox": OutboxResource(),
        },
        raise_on_error=False,
    )


def shown(result: dg.ExecuteInProcessResult) -> list[str | None]:
    """The months that the run materialized, in the order of the events."""
    return [one.step_materialization_data.materialization.partition for one in result.all_events
            if one.is_step_materialization]  # fmt: skip


def test_a_month_that_is_refused_hides_none_that_was_done_before_it(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_movement(engine, add_organization(engine), 10_000, "2026-01-10T10:00")
    for month in (JANUARY, FEBRUARY, MARCH):
        settle(engine, month)
    tamper(engine, "UPDATE ledger_entry SET fees = 1, net = net + 1 WHERE month = '2026-02-01'")
    for asset, why in (
        (closed_books, "2026-02 is not closed, because the check honest is red"),
        (payouts, "2026-02 is SETTLED, and only closed months are paid"),
        (settlement_statements, "2026-02 is SETTLED, and statements are of closed months"),
    ):
        result = backfill(asset, url, instance)
        assert failure_of(result).startswith(why)
        assert shown(result) == ["2026-01"], asset.key
        assert instance.get_materialized_partitions(asset.key) == {"2026-01"}


def test_a_month_before_the_books_is_told_in_the_same_sentence_on_every_page(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_movement(engine, add_organization(engine, external_ref="hall-7"), 10_000, "2026-02-10T10:00")
    settle_and_close(engine, FEBRUARY)
    sentence = (
        "2026-01 lies before 2026-02, with which the books begin, so it is never settled, closed or paid; what comes "
        "late for it is adjusted in 2026-03."
    )
    for asset in (closed_books, payouts, settlement_statements):
        assert failure_of(backfill(asset, url, instance, "2026-01", "2026-01")) == sentence
    settled = backfill(monthly_settlement, url, instance, "2026-01", "2026-01")
    [event] = settled.asset_materializations_for_node("monthly_settlement")
    assert event.metadata["summary"].value == sentence
    rehearsed = dry_run(engine, JANUARY, now=instant("2026-05-03T06:30"), first_month=JANUARY)
    assert rehearsed.why_nothing == sentence
    with engine.connect() as connection:
        assert explain(connection, "hall-7", JANUARY).before_the_books == sentence


def test_each_of_the_four_jobs_writes_down_that_it_was_started(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_movement(engine, add_organization(engine), 10_000, "2026-01-10T10:00")
    for asset in CHAIN:
        assert backfill(asset, url, instance, "2026-01", "2026-01").success
    firings = rows(engine, "SELECT job, scheduled_for, partition, outcome FROM job_firing ORDER BY id")
    window = (instant("2026-05-03T04:30"), "2026-01", "ACCEPTED")
    assert firings == [
        ("monthly_settlement", *window),
        ("closed_books", *window),
        ("payouts", *window),
        ("settlement_statements", *window),
    ]


def test_a_start_that_is_repeated_by_another_run_is_a_duplicate_of_statements_too(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    settle(engine, JANUARY)
    for _ in range(2):
        backfill(settlement_statements, url, instance)
    backfill(settlement_statements, url, instance, "2026-04", "2026-05")
    assert rows(engine, "SELECT partition, outcome FROM job_firing ORDER BY id") == [
        ("2026-01 to 2026-03", "ACCEPTED"),
        ("2026-01 to 2026-03", "DUPLICATE"),
        ("2026-04 to 2026-05", "ACCEPTED"),
    ]


def looping(work: Callable[[Month], Mapping[str, Any]]) -> dg.AssetsDefinition:
    """An asset of its own that does `work` for each of its months."""

    @dg.asset(partitions_def=months)
    def looped(
        context: dg.AssetExecutionContext, database: DatabaseResource
    ) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization]:  # type: ignore[type-arg]
        with database.engine("looped") as engine:
            yield from each_month(context, engine, work, own_faults=(LookupError,))

    return looped


def failing(how: Exception, done: list[str]) -> Callable[[Month], Mapping[str, Any]]:
    def work(month: Month) -> Mapping[str, Any]:
        if month == FEBRUARY:
            raise how
        done.append(str(month))
        return {"month": str(month)}

    return work


def test_a_fault_of_one_month_alone_stops_no_other_month(url: URL, instance: dg.DagsterInstance) -> None:
    done: list[str] = []
    result = backfill(looping(failing(LookupError("February lacks a page."), done)), url, instance)
    assert failure_of(result) == "February lacks a page."
    assert done == shown(result) == ["2026-01", "2026-03"]


@pytest.mark.parametrize("how", [InvalidInput("February is refused."), OSError("the disk is full")])
def test_whatever_ends_a_run_the_months_before_are_seen_to_be_done(
    url: URL, instance: dg.DagsterInstance, how: Exception
) -> None:
    done: list[str] = []
    result = backfill(looping(failing(how, done)), url, instance)
    assert not result.success
    assert done == shown(result) == ["2026-01"]


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        ({"user": "ana", "dagster/backfill": "abc"}, "user ana"),
        ({"dagster/schedule_name": "payouts_schedule"}, "schedule payouts_schedule"),
        ({"dagster/backfill": "abc"}, "backfill abc"),
        ({}, "run by hand"),
    ],
)
def test_who_started_a_run_is_told_by_its_tags(tags: dict[str, str], who: str) -> None:
    assert launched_by(tags) == who
