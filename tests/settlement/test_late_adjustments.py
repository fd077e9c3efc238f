"""What came late, told after the fact; and what a pass would post, told before, with nothing written."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.support.books import FEBRUARY, FIRST, JANUARY, MARCH, close, settle_and_close
from tests.support.oracle import AMOUNTS
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import NOW, settle
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.late_report import LateAdjustments, late_adjustments, late_in_pass, late_money
from ticketflow_orch.settlement.preview import DryRun, dry_run
from ticketflow_orch.settlement.queries import late_organizations

FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


def late(engine: Engine, month: Month | None = None, limit: int = 100) -> LateAdjustments:
    with engine.connect() as connection:
        return late_adjustments(connection, month, limit)


def told(adjustments: LateAdjustments) -> list[tuple[str, str, str, str, int, int]]:
    return [
        (one.external_ref, one.currency, str(one.month), str(one.origin), one.old, one.new)
        for one in adjustments.listed
    ]


@pytest.fixture
def theatre(engine: Engine) -> int:
    """An organization with a sale of 100 in January and in March."""
    organization = add_organization(engine, external_ref="theatre")
    for month in ("01", "03"):
        add_movement(engine, organization, 100, f"2026-{month}-10T10:00", **FREE)
    return organization


# --- What came late


def test_what_is_not_posted_yet_is_listed_for_each_organization_that_the_status_counts(
    engine: Engine, theatre: int
) -> None:
    settle_and_close(engine, JANUARY)
    settle(engine, MARCH)
    for month, amount in (("01", 7), ("01", -2), ("03", 11)):
        add_movement(engine, theatre, amount, f"2026-{month}-11T10:00", kind="MANUAL", reason="forgotten", **FREE)
    with engine.connect() as connection:
        waiting, counted = late_money(connection), late_organizations(connection)
    assert [(str(one.origin), str(one.posted_in), one.movements, one.amount) for one in waiting] == [
        ("2026-03", "2026-03", 1, 11),
        ("2026-01", "2026-02", 2, 5),
    ]
    assert counted == {MARCH: 1, JANUARY: 1}
    with engine.connect() as connection:
        assert [one.amount for one in late_money(connection, FEBRUARY)] == [5]
        assert [(one.amount, one.altogether) for one in late_money(connection, limit=1)] == [(11, 2)]
    settle(engine, FEBRUARY)
    settle(engine, MARCH)
    with engine.connect() as connection:
        assert (late_money(connection), late_organizations(connection)) == ((), {})
    assert late(engine).count == 2


def test_every_adjustment_says_what_it_changed_from_and_to(engine: Engine, theatre: int) -> None:
    settle_and_close(engine, JANUARY)
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
    assert late(engine) == LateAdjustments((), 0)
    for amount in (7, -20):
        add_movement(engine, theatre, amount, "2026-01-11T10:00", kind="MANUAL", reason="forgotten", **FREE)
        settle(engine, FEBRUARY)
    add_movement(engine, theatre, 3, "2026-03-11T10:00", currency="USD", **FREE)
    settle(engine, MARCH)
    assert told(late(engine)) == [
        ("theatre", "USD", "2026-03", "2026-03", 0, 3),
        ("theatre", "EUR", "2026-02", "2026-01", 100, 107),
        ("theatre", "EUR", "2026-02", "2026-01", 107, 87),
    ]
    assert [one.difference for one in late(engine).listed] == [3, 7, -20]
    assert told(late(engine, MARCH)) == [("theatre", "USD", "2026-03", "2026-03", 0, 3)]


def test_a_list_that_is_cut_says_how_many_there_are(engine: Engine) -> None:
    organizations = [add_organization(engine) for _ in range(5)]
    settle(engine)
    for organization in organizations:
        add_movement(engine, organization, 100, "2026-03-10T10:00")
    settle(engine)
    cut = late(engine, limit=2)
    assert (len(cut.listed), cut.count, cut.more) == (2, 5, 3)


def test_what_one_pass_posted_is_told_apart_from_what_another_did(engine: Engine, theatre: int) -> None:
    settle(engine)
    passes = []
    for amount in (7, 20):
        add_movement(engine, theatre, amount, "2026-03-11T10:00", **FREE)
        passes.append(settle(engine).settlement)
    with engine.connect() as connection:
        found = [told(late_in_pass(connection, one)) for one in passes if one is not None]
    assert found == [
        [("theatre", "EUR", "2026-03", "2026-03", 100, 107)],
        [("theatre", "EUR", "2026-03", "2026-03", 107, 127)],
    ]


# --- What would be posted


@pytest.fixture
def reader(engine: Engine, url: URL) -> Iterator[Engine]:
    """An engine whose role may read and nothing else."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "DO $$ BEGIN CREATE ROLE only_reads NOLOGIN; EXCEPTION WHEN others THEN NULL; END $$"
        )
        connection.exec_driver_sql("GRANT USAGE ON SCHEMA public TO only_reads")
        connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO only_reads")
    reader = connect_engine(url.update_query_dict({"options": "-c role=only_reads"}), "pytest reader")
    yield reader
    reader.dispose()


def rehearse(engine: Engine, month: Month = MARCH, **options: Any) -> DryRun:
    return dry_run(engine, month, now=NOW, first_month=FIRST, **options)


def everything(engine: Engine) -> list[tuple[Any, ...]]:
    """How many rows each table has and how often each was written to, by Postgres' own records."""
    with engine.connect() as connection:
        tables = connection.execute(
            text(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"
            )
        ).scalars()
        return [
            (table, *connection.execute(text(f"SELECT count(*), max(CAST(CAST(xmin AS text) AS bigint)) FROM {table}")))
            for table in tables.all()
        ]


@pytest.mark.every_server
def test_a_dry_run_tells_what_the_pass_then_posts_and_writes_nothing(
    engine: Engine, reader: Engine, theatre: int, tmp_path: Path
) -> None:
    add_organization(engine, external_ref="=idle", currency="JPY")
    settle_and_close(engine, JANUARY)
    settle(engine, FEBRUARY)
    close(engine, FEBRUARY)
    add_movement(engine, theatre, 7, "2026-01-11T10:00")
    before = everything(engine)
    rehearsed = rehearse(reader, file=tmp_path / "march.csv")
    assert everything(engine) == before
    assert [(str(one.origin), one.currency, one.settlements, one.adjustments, one.net) for one in rehearsed.totals] == [
        ("2026-01", "EUR", 0, 1, 6), ("2026-03", "EUR", 1, 0, 100), ("2026-03", "JPY", 1, 0, 0),
    ]  # fmt: skip
    result = settle(engine)
    assert (result.rows_new, result.rows_adjusted) == (2, 1)
    with engine.connect() as connection:
        names = ", ".join(AMOUNTS)
        posted = connection.execute(
            text(f"SELECT origin_month, {names} FROM ledger_entry WHERE month = '2026-03-01' ORDER BY 1, currency")
        ).all()
    assert [(one.origin.first_day, *one.amounts) for one in rehearsed.listed] == [tuple(row) for row in posted]
    with (tmp_path / "march.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [tuple(row.values())[:8] for row in rows] == [
        ("theatre", "2026-03", "2026-01", "adjustment", "EUR", "1.00", "1.06", "0.07"),
        ("theatre", "2026-03", "2026-03", "settlement", "EUR", "0.00", "1.00", "1.00"),
        ("'=idle", "2026-03", "2026-03", "settlement", "JPY", "0", "0", "0"),
    ]
    again = rehearse(reader)
    assert (again.entries, again.listed, again.more) == (0, (), 0)


def test_a_dry_run_shows_what_came_late_beside_what_is_posted(engine: Engine, theatre: int) -> None:
    settle(engine)
    add_movement(engine, theatre, 5, "2026-03-11T10:00", **FREE)
    [entry] = rehearse(engine).listed
    assert (entry.external_ref, entry.is_settlement, entry.posted, entry.difference) == ("theatre", False, 100, 5)


def test_a_dry_run_lists_the_first_entries_and_counts_them_all(engine: Engine, tmp_path: Path) -> None:
    for _ in range(7):
        add_organization(engine)
    rehearsed = rehearse(engine, chunk_size=3, shown=2, file=tmp_path / "all.csv")
    assert (len(rehearsed.listed), rehearsed.entries, rehearsed.more) == (2, 7, 5)
    assert len((tmp_path / "all.csv").read_text("utf-8").splitlines()) == 1 + 7


def test_a_dry_run_names_whoever_would_be_parked(engine: Engine) -> None:
    organizations = [add_organization(engine, external_ref=f"theatre {number}") for number in range(9)]
    poison = [add_movement(engine, organizations[6], 2**62, "2026-03-10T10:00") for _ in range(2)]
    rehearsed = rehearse(engine, chunk_size=4)
    assert rehearsed.entries == 8
    [(name, month, why)] = rehearsed.would_be_parked
    assert (name, month) == ("theatre 6", MARCH)
    assert "out of range" in why
    add_void(engine, poison[0])
    assert rehearse(engine).would_be_parked == ()


def test_a_dry_run_of_a_closed_month_says_that_nothing_is_posted_in_it(engine: Engine, theatre: int) -> None:
    settle_and_close(engine, JANUARY)
    add_movement(engine, theatre, 5, "2026-01-11T10:00")
    rehearsed = rehearse(engine, JANUARY)
    assert rehearsed.why_nothing is not None
    assert rehearsed.entries == 0


def test_a_dry_run_is_refused_where_a_settlement_is(engine: Engine, theatre: int, tmp_path: Path) -> None:
    with pytest.raises(TicketflowError, match=r"2024-12 is before 2025-01, the first month"):
        rehearse(engine, Month(2024, 12))
    with pytest.raises(TicketflowError, match=r"2026-03 is not over in Europe/Madrid"):
        dry_run(engine, MARCH, now=instant("2026-03-15T12:00"), first_month=FIRST, file=tmp_path / "early.csv")
    with pytest.raises(TicketflowError, match=r"nowhere/march.csv cannot be written \(No such file or directory\)"):
        rehearse(engine, file=tmp_path / "nowhere" / "march.csv")
    assert list(tmp_path.iterdir()) == []
