"""The answer to an analyst's question, as tables: how one organization's month came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from assets.explanation import MOVEMENTS_SHOWN
from resources import DatabaseResource
from tests.support.anomalous import won_twice
from tests.support.books import FEBRUARY, JANUARY, add_payout, close, settle_and_close
from tests.support.payable import pay_from
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.formatting.money import written_out


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def organization(engine: Engine) -> int:
    organization = add_organization(engine, external_ref="hall-7", name="Hall 7")
    add_movement(engine, organization, 100_000, "2026-01-10T10:00", external_ref="sold")
    return organization


def ask(url: URL, instance: dg.DagsterInstance, **config: str) -> dg.ExecuteInProcessResult:
    definitions = build_definitions({"database": DatabaseResource(url=url.render_as_string(hide_password=False))})
    return definitions.resolve_job_def("explain_job").execute_in_process(
        run_config={"ops": {"explanation": {"config": config}}}, instance=instance, raise_on_error=False
    )


def answer(url: URL, instance: dg.DagsterInstance, **config: str) -> Mapping[str, Any]:
    result = ask(url, instance, **config)
    assert result.success
    metadata = result.asset_materializations_for_node("explanation")[0].metadata
    return {name: value.value for name, value in metadata.items()}


def rows(table: Any) -> list[dict[str, Any]]:
    return [dict(record.data) for record in table.records]


def test_a_settled_month_is_explained_from_its_movements_to_its_entries(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    settle(engine, JANUARY)
    said = answer(url, instance, organization="hall-7", month="2026-01")
    assert said["summary"] == "Hall 7 (hall-7), 2026-01, settled: 1 movement."
    assert [(row["rate"], row["tax"], row["captures"], row["commission"]) for row in rows(said["lines by rate"])] == [
        ("10 %", "20 %", "1,000.00", "100.00")
    ]
    assert [(row["posted in"], row["net"], row["reason"]) for row in rows(said["ledger entries"])] == [
        ("2026-01", "880.00", "settlement")
    ]
    assert rows(said["movements"]) == [
        {
            "occurred (Europe/Madrid)": "2026-01-10 11:00", "kind": "capture", "amount": "1,000.00", "currency": "EUR",
            "rate": "10 %", "reference": "sold", "reverses": "", "late": "",
        }
    ]  # fmt: skip
    assert said["starts at"] == instant("2026-01-01T00:00+01:00").timestamp()
    assert said["ends before"] == instant("2026-02-01T00:00+01:00").timestamp()
    assert "balance" not in said


def test_what_looks_wrong_in_the_month_is_said(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    won_twice(engine, organization)
    said = answer(url, instance, organization="hall-7", month="2026-03")
    assert "51.40 more came back than it took" in said["summary"]


def test_a_closed_month_says_what_is_owed_and_whether_it_is_paid(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    settle_and_close(engine, JANUARY)
    assert rows(answer(url, instance, organization="hall-7", month="2026-01")["balance"])[0]["payout"] == ""
    add_payout(engine, organization, JANUARY, "IN_DOUBT")
    assert rows(answer(url, instance, organization="hall-7", month="2026-01")["balance"]) == [
        {
            "currency": "EUR", "opening": "0.00", "net": "880.00", "returned": "0.00", "settled elsewhere": "0.00",
            "due": "880.00", "payable": "880.00", "closing": "0.00", "payout": "in doubt",
        }
    ]  # fmt: skip


def test_a_month_that_was_settled_elsewhere_says_so(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    pay_from(engine, FEBRUARY)
    settle_and_close(engine, JANUARY)
    said = answer(url, instance, organization="hall-7", month="2026-01")
    assert said["summary"].endswith(
        "Payouts begin with 2026-02: what is about this month was settled elsewhere and comes off the balance that "
        "takes it in."
    )
    [balance] = rows(said["balance"])
    assert (balance["settled elsewhere"], balance["closing"]) == ("880.00", "0.00")
    pay_from(engine, None)
    assert answer(url, instance, organization="hall-7", month="2026-01")["summary"].endswith(
        "Payouts are off: what is due is carried."
    )


def test_what_came_late_is_told_until_it_is_posted_and_then_where(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    settle_and_close(engine, JANUARY)
    add_movement(engine, organization, 10_000, "2026-01-11T10:00")
    waiting = answer(url, instance, organization="hall-7", month="2026-01")
    assert waiting["summary"].endswith("2 movements. Late and not posted yet: 1 of them.")
    assert [row["late"] for row in rows(waiting["movements"])] == ["", "late"]
    settle(engine, FEBRUARY)
    posted = answer(url, instance, organization="hall-7", month="2026-01")
    assert posted["summary"].endswith("2 movements.")
    assert [(row["posted in"], row["net"]) for row in rows(posted["ledger entries"])] == [
        ("2026-01", "880.00"),
        ("2026-02", "88.00"),
    ]


def test_why_somebody_is_parked_is_told(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    execute(
        engine,
        "INSERT INTO parked_organization (organization_id, month, reason) VALUES (:id, '2026-01-01', 'a dispute')",
        id=organization,
    )
    assert answer(url, instance, organization="hall-7", month="2026-01")["summary"].endswith("Parked: a dispute.")


def test_who_is_parked_because_no_column_holds_his_sums_is_explained_all_the_same(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    for _ in range(3):
        add_movement(engine, organization, 2**62, "2026-01-11T10:00")
    settle(engine, JANUARY)
    said = answer(url, instance, organization="hall-7", month="2026-01")
    assert said["summary"].endswith("Parked: bigint out of range.")
    assert [row["captures"] for row in rows(said["lines by rate"])] == [written_out(3 * 2**62 + 100_000, 2)]
    assert [row["amount"] for row in rows(said["movements"])][1:] == [written_out(2**62, 2)] * 3


def test_without_a_month_the_last_settled_one_is_explained(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    settle(engine, JANUARY)
    settle(engine, FEBRUARY)
    close(engine, JANUARY)
    assert answer(url, instance, organization="hall-7", month="")["month"] == "2026-02"


def test_of_very_many_movements_the_last_are_shown(
    engine: Engine, url: URL, instance: dg.DagsterInstance, organization: int
) -> None:
    execute(
        engine,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT 'later-' || n, :organization, 'CAPTURE', 'EUR', 1, 0, 0, '2026-01-20Z'
        FROM generate_series(1, :shown) AS n
        """,
        organization=organization,
        shown=MOVEMENTS_SHOWN,
    )
    said = answer(url, instance, organization="hall-7", month="2026-01")
    assert said["movements not shown"] == 1
    assert len(rows(said["movements"])) == MOVEMENTS_SHOWN
    assert rows(said["movements"])[0]["reference"] == "later-1"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"organization": "hall-7", "month": "2026-1"}, "'2026-1' is not a month; write it as YYYY-MM"),
        ({"organization": "", "month": "2026-01"}, "There is no organization ''"),
        ({"organization": "hall-8", "month": "2026-01"}, "There is no organization 'hall-8'"),
        ({"organization": "hall-7", "month": ""}, "No month is settled yet; name the one to explain"),
    ],
)
def test_a_question_that_has_no_answer_is_refused_in_one_sentence(
    url: URL, instance: dg.DagsterInstance, organization: int, config: dict[str, str], sentence: str
) -> None:
    result = ask(url, instance, **config)
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert len(failures) == 1
    assert failures[0].user_failure_data is not None
    assert str(failures[0].user_failure_data.description).startswith(sentence)
