"""Closed books as Dagster sees them: months closed in order in one run, what a month says, its checks, its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from assets import BOOKS_CHECKS, closed_books
from resources import ClockResource, DatabaseResource
from schedules import close_books_schedule
from tests.support.asset_runs import checks_of, failure_of
from tests.support.books import FEBRUARY, JANUARY, MARCH, balances, close, set_minimum, state_of
from tests.support.homes import dagster_instance
from tests.support.installed import decide
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import settle, tamper
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.payouts.parking import park

FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


def materialize(
    url: URL, instance: dg.DagsterInstance, first: str, last: str, tags: dict[str, str] | None = None
) -> dg.ExecuteInProcessResult:
    """One run for all months from `first` to `last`, as a backfill starts it."""
    span = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
    return dg.materialize(
        [closed_books, *BOOKS_CHECKS],
        instance=instance,
        resources={
            "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
            "clock": ClockResource(fixed_at="2026-06-15T12:00:00Z"),
        },
        tags=span | (tags or {}),
        raise_on_error=False,
    )


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each month that the run materialized, in the order of the events."""
    events = [one.step_materialization_data.materialization for one in result.all_events if one.is_step_materialization]
    return {event.partition or "": {name: value.value for name, value in event.metadata.items()} for event in events}


@pytest.fixture
def theatre(engine: Engine) -> int:
    """An organization that owes 100 in January and is owed 300 in February, and nothing in March; all settled."""
    organization = add_organization(engine, external_ref="theatre", name="Teatro Real")
    add_movement(engine, organization, -100, "2026-01-10T10:00", kind="MANUAL", reason="loan", **FREE)
    add_movement(engine, organization, 300, "2026-02-10T10:00", **FREE)
    for month in (JANUARY, FEBRUARY, MARCH):
        settle(engine, month)
    return organization


def test_a_backfill_closes_its_months_in_order_in_one_run_and_each_says_what_it_came_to(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int
) -> None:
    result = materialize(url, instance, "2026-01", "2026-03")
    assert result.success
    shown = materialized(result)
    assert list(shown) == ["2026-01", "2026-02", "2026-03"]
    february = shown["2026-02"]
    assert february["summary"] == "**2026-02 is closed.** 1 balance: 1 to be paid, 0 carried on."
    assert {name: february["balances"].records[0].data[name] for name in ("opening", "net", "payable", "closing")} == {
        "opening": "-1.00", "net": "3.00", "payable": "2.00", "closing": "0.00",
    }  # fmt: skip
    assert february["payable EUR (minor units)"] == 200
    assert february["payable EUR, months so far"].endswith("**2.00**")
    assert checks_of(result) == {
        "chain_holds": (True, "No month is bad."), "closed_months_unchanged": (True, "No month is bad."),
        "ledger_reconciles": (True, "Nothing is broken."), "all_fits_together": (True, "Nothing is broken."),
    }  # fmt: skip
    again = materialized(materialize(url, instance, "2026-02", "2026-02"))
    assert again["2026-02"]["summary"] == "**2026-02 was closed already**, by run by hand; nothing was changed."


def test_who_closed_a_month_is_the_declared_name_and_the_database_role(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int
) -> None:
    result = materialize(url, instance, "2026-01", "2026-01", tags={"user": "ana"})
    with engine.connect() as connection:
        closed = (
            "SELECT closed_by, closed_role, closed_run_id, session_user FROM settlement_period WHERE closed_at < now()"
        )
        row = connection.execute(text(closed)).one()
    assert tuple(row) == ("user ana", row.session_user, result.run_id, row.session_user)
    shown = materialized(result)["2026-01"]
    assert (shown["closed by"], shown["database role"]) == ("user ana", row.session_user)


def test_a_month_that_is_refused_leaves_those_before_closed_and_shown(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int
) -> None:
    tamper(engine, "UPDATE ledger_entry SET fees = 1, captures = 299 WHERE month = '2026-02-01'")
    result = materialize(url, instance, "2026-01", "2026-03")
    assert not result.success
    assert failure_of(result).startswith("2026-02 is not closed, because the check honest is red for 2026-02: theatre")
    assert list(materialized(result)) == ["2026-01"]
    assert [state_of(engine, month) for month in (JANUARY, FEBRUARY, MARCH)] == ["CLOSED", "SETTLED", "SETTLED"]


def test_an_organization_that_is_parked_is_named(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int
) -> None:
    add_organization(engine)
    settle(engine, JANUARY)
    park(engine, "theatre", "disputed contract", "ana", JANUARY)
    shown = materialized(materialize(url, instance, "2026-01", "2026-01"))["2026-01"]
    assert shown["summary"].endswith("1 balance: 0 to be paid, 0 carried on, **1 organization parked**.")
    [row] = shown["parked organizations"].records
    assert dict(row.data) == {"organization": "theatre", "since month": "2026-01", "why": "disputed contract"}


def test_the_checks_name_every_closed_month_that_is_bad(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int
) -> None:
    set_minimum(engine, 10_000)
    assert materialize(url, instance, "2026-01", "2026-02").success
    tamper(engine, "UPDATE ledger_entry SET fees = fees + 5, net = net + 5 WHERE month = '2026-01-01'")
    tamper(engine, "UPDATE organization_balance SET opening = 0, due = 300, closing = 300 WHERE month = '2026-02-01'")
    result = materialize(url, instance, "2026-01", "2026-01")
    assert checks_of(result) == {
        "chain_holds": (False, "2026-02: 1"), "closed_months_unchanged": (False, "2026-01: 1"),
        "ledger_reconciles": (False, "ledger_reconciles: 1"), "all_fits_together": (False, "totals_match: 1"),
    }  # fmt: skip
    [reconciles] = [one for one in result.get_asset_check_evaluations() if one.check_name == "ledger_reconciles"]
    [row] = reconciles.metadata["breaches"].value.records
    assert dict(row.data) == {
        "invariant": "ledger_reconciles", "month": "2026-01", "organization": "theatre", "currency": "EUR",
        "what": "posted -95, recomputed -100",
    }  # fmt: skip
    assert "ticketflow settle YYYY-MM --full" in str(reconciles.metadata["how to fix it"].value)
    close_refused = materialize(url, instance, "2026-03", "2026-03")
    assert failure_of(close_refused).startswith(
        "2026-03 is not closed, because the check chain_holds is red for 2026-02"
    )


# --- By the clock


def tick(url: URL, instance: dg.DagsterInstance, at: str = "2026-06-15T04:00") -> tuple[str, str] | str:
    """The first and the last month that the schedule requests at `at`, or why it skips."""
    database = DatabaseResource(url=url.render_as_string(hide_password=False))
    with dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=instant(at),
        resources={"database": database},
        repository_def=build_definitions({"database": database}).get_repository_def(),
    ) as context:
        data = close_books_schedule.evaluate_tick(context)
    if data.skip_message:
        return data.skip_message
    [request] = data.run_requests or ()
    one = request.tags.get("dagster/partition", "")
    tags = request.tags
    return (tags.get(ASSET_PARTITION_RANGE_START_TAG, one), tags.get(ASSET_PARTITION_RANGE_END_TAG, one))


def test_the_schedule_requests_all_months_that_may_be_closed_in_one_run(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    assert tick(url, instance) == "No month that is settled may be closed."
    add_movement(engine, add_organization(engine), 100, "2026-01-10T10:00")
    for month in (JANUARY, FEBRUARY, MARCH.next()):
        settle(engine, month)
    assert tick(url, instance) == ("2026-01", "2026-02")
    close(engine, JANUARY)
    assert tick(url, instance) == ("2026-02", "2026-02")
    close(engine, FEBRUARY)
    assert tick(url, instance) == "No month that is settled may be closed."
    assert len(balances(engine)) == 2


def test_the_schedule_leaves_closing_to_people_where_it_is_told_to(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int
) -> None:
    decide(engine, auto_close=False)
    assert tick(url, instance) == "auto_close is off: months are closed by hand."


@pytest.mark.parametrize("launched", ["by the schedule", "by hand"])
def test_the_schedule_skips_while_months_are_being_closed(
    engine: Engine, url: URL, instance: dg.DagsterInstance, theatre: int, launched: str
) -> None:
    job = build_definitions({"database": DatabaseResource(url="postgresql:///any")}).resolve_job_def("close_books_job")
    run = instance.create_run_for_job(
        job,
        status=dg.DagsterRunStatus.STARTED,
        **({} if launched == "by the schedule" else {"asset_selection": frozenset({closed_books.key})}),
    )
    assert f"Run {run.run_id}" in tick(url, instance)
