"""A statement that cannot be made stops itself alone: the others are written, mailed and counted, and it is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.support.payable import rows
from tests.support.poison import cure, poison
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import tamper
from tests.support.sql_statements import execute
from tests.support.statements import MARCH, NOW, close, state
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.statements import (
    StatementOptions,
    StatementsLeftOutError,
    drafts,
    issue_statements,
    write_statement,
)
from ticketflow_orch.statements.invariants import judged_statements, months_to_issue
from ticketflow_orch.statements.storage import Place

MAILED = {"mail_from": instant("2020-01-01T00:00")}


def theatres(engine: Engine, *references: str, currencies: tuple[str, ...] = ("EUR",)) -> list[int]:
    """Organizations that sold in March, whose books are closed."""
    organizations = []
    for reference in references:
        organization = add_organization(engine, external_ref=reference, contact_email=f"{reference}@theatre.example")
        for currency in currencies:
            add_movement(engine, organization, 10_000, "2026-03-10T10:00", currency=currency)
        organizations.append(organization)
    close(engine, MARCH)
    return organizations


def unbalance(engine: Engine, organization: int, by: int = 1, currency: str = "EUR") -> None:
    """What the ledger says of the organization is no longer what its movements come to."""
    tamper(
        engine,
        f"UPDATE ledger_entry SET captures = captures + {by}, net = net + {by} "
        f"WHERE organization_id = {organization} AND currency = '{currency}'",
    )


def refusal_of(engine: Engine, folder: Path, **options: Any) -> str:
    """What stating March, which leaves statements out, says."""
    with pytest.raises(StatementsLeftOutError) as caught:
        state(engine, folder, **MAILED, **options)
    return str(caught.value)


def pages(folder: Path) -> list[str]:
    return sorted(f"{path.parent.name} {path.stem}" for path in folder.rglob("*.html"))


def in_tables(folder: Path) -> list[tuple[str, str]]:
    """Organization and currency of each row of the month's table, which its CSV has too."""
    table = pq.read_table(folder / "2026-03" / "statements.parquet").to_pylist()
    lines = (folder / "2026-03" / "statements.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + len(table)
    return [(row["organization"], row["currency"]) for row in table]


def mailed(engine: Engine) -> list[tuple[str, str]]:
    return rows(
        engine,
        "SELECT payload ->> 'organization', payload ->> 'currency' FROM outbox_event "
        "WHERE event_type = 'StatementReady' ORDER BY id",
    )


def is_stated(engine: Engine) -> bool:
    with engine.connect() as connection:
        return MARCH not in months_to_issue(connection)


def breaches(engine: Engine, folder: Path) -> list[tuple[str, str, str]]:
    with engine.connect() as connection:
        found = list(judged_statements(connection, Place(folder)))
        return [(one.organization, one.currency, one.what) for finding in found for one in finding.examples]


@pytest.mark.every_server
@pytest.mark.parametrize("chunk_size", [1, 2, 100])
def test_a_statement_that_does_not_add_up_is_left_out_and_all_others_are_written_and_mailed(
    engine: Engine, tmp_path: Path, chunk_size: int
) -> None:
    _, bad, _ = theatres(engine, "apollo", "bijou", "capitol")
    unbalance(engine, bad)
    refusal = refusal_of(engine, tmp_path, chunk_size=chunk_size)
    assert refusal.startswith(
        "The statements of 2026-03 are not all issued: 2 statements written, 1 left out; correct what is wrong, then "
        "materialize settlement_statements for 2026-03 again. "
        "The statement of bijou for 2026-03 in EUR does not add up: "
    )
    assert pages(tmp_path) == ["apollo EUR", "capitol EUR"]
    assert in_tables(tmp_path) == mailed(engine) == [("apollo", "EUR"), ("capitol", "EUR")]
    assert not is_stated(engine)


def test_when_it_is_right_the_next_run_adds_it_and_mails_nobody_twice(engine: Engine, tmp_path: Path) -> None:
    first, _ = theatres(engine, "apollo", "bijou")
    unbalance(engine, first)
    refusal_of(engine, tmp_path)
    assert refusal_of(engine, tmp_path) == refusal_of(engine, tmp_path)
    unbalance(engine, first, by=-1)
    assert state(engine, tmp_path, **MAILED).mails == 1
    assert in_tables(tmp_path) == [("apollo", "EUR"), ("bijou", "EUR")]
    assert mailed(engine) == [("bijou", "EUR"), ("apollo", "EUR")]
    assert is_stated(engine)
    assert breaches(engine, tmp_path) == []


def test_who_is_left_out_is_told_once_and_named_by_the_check_until_it_is_right(engine: Engine, tmp_path: Path) -> None:
    _, bad = theatres(engine, "apollo", "bijou")
    assert breaches(engine, tmp_path) == []
    unbalance(engine, bad)
    for _ in range(2):
        refusal_of(engine, tmp_path)
    alerted = rows(
        engine, "SELECT payload ->> 'job', payload ->> 'row' FROM outbox_event WHERE event_type = 'RowLeftOut'"
    )
    assert alerted == [("settlement_statements", "2026-03 bijou EUR")]
    what = "has no statement: `ticketflow statement bijou 2026-03` says why"
    assert breaches(engine, tmp_path) == [("bijou", "EUR", what)]


def test_one_currency_that_does_not_add_up_leaves_the_organization_s_others(engine: Engine, tmp_path: Path) -> None:
    [theatre] = theatres(engine, "apollo", currencies=("EUR", "JPY"))
    unbalance(engine, theatre, currency="EUR")
    refusal_of(engine, tmp_path)
    assert in_tables(tmp_path) == mailed(engine) == [("apollo", "JPY")]
    options = StatementOptions(Place(tmp_path / "alone"))
    with pytest.raises(StatementsLeftOutError, match="apollo for 2026-03 in EUR does not add up"):
        write_statement(engine, "apollo", MARCH, options)
    assert pages(tmp_path / "alone") == ["apollo JPY"]
    assert len(write_statement(engine, "apollo", MARCH, options, "JPY")) == 1


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_an_organization_that_cannot_be_read_is_left_out_with_all_its_statements(
    engine: Engine, tmp_path: Path, chunk_size: int
) -> None:
    theatres(engine, "apollo", "bijou", "capitol", "dome")
    # Nobody may do that to an organization that has sold anything; tzdata may forget a zone all the same.
    tamper(engine, "UPDATE organization SET timezone = 'Mars/Olympus' WHERE external_ref IN ('bijou', 'dome')")
    refusal = refusal_of(engine, tmp_path, chunk_size=chunk_size)
    for name in ("bijou", "dome"):
        assert f"No statement of {name} for 2026-03 can be made or mailed: Time zone 'Mars/Olympus' is" in refusal
    assert in_tables(tmp_path) == mailed(engine) == [("apollo", "EUR"), ("capitol", "EUR")]


def test_one_organization_that_cannot_be_read_is_said_by_the_command_that_the_check_names(
    engine: Engine, tmp_path: Path
) -> None:
    theatres(engine, "apollo")
    tamper(engine, "UPDATE organization SET timezone = 'Mars/Olympus'")
    options = StatementOptions(Place(tmp_path))
    for currency in (None, "EUR"):
        with pytest.raises(
            StatementsLeftOutError, match=r"^No statement of apollo for 2026-03 can be made .*Mars/Olympus"
        ):
            write_statement(engine, "apollo", MARCH, options, currency)


@pytest.mark.parametrize("chunk_size", [1, 100])
def test_a_mail_that_cannot_be_queued_stops_only_itself(engine: Engine, tmp_path: Path, chunk_size: int) -> None:
    theatres(engine, "apollo", "bijou", "capitol")
    poison(engine, "outbox_event", "NEW.aggregate_id = 'bijou:EUR:2026-03'")
    refusal = refusal_of(engine, tmp_path, chunk_size=chunk_size)
    assert refusal.endswith("No statement of bijou for 2026-03 can be made or mailed: division by zero.")
    assert len(pages(tmp_path)) == 3
    assert mailed(engine) == [("apollo", "EUR"), ("capitol", "EUR")]
    assert not is_stated(engine)
    cure(engine, "outbox_event")
    assert state(engine, tmp_path, **MAILED).mails == 1
    assert is_stated(engine)


def test_a_table_that_cannot_be_read_is_said_of_its_month_alone(engine: Engine, tmp_path: Path) -> None:
    theatres(engine, "apollo")
    state(engine, tmp_path)
    table = tmp_path / "2026-03" / "statements.parquet"
    table.write_bytes(table.read_bytes()[:-9])
    for _ in range(2):
        [(_, _, what)] = breaches(engine, tmp_path)
        assert what.startswith(f"{table} cannot be read (")
        execute(engine, "UPDATE settlement_period SET stated_at = NULL")


def test_sums_that_no_column_holds_stop_the_statement_of_their_organization_alone(
    engine: Engine, tmp_path: Path
) -> None:
    theatres(engine, "apollo", "bijou")
    tamper(
        engine,
        "UPDATE money_movement SET amount = 9000000000000000000, commission_rate_bps = 0 FROM organization "
        "WHERE organization.id = organization_id AND organization.external_ref = 'apollo'",
    )
    execute(
        engine,
        "INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps, "
        "commission_tax_bps, occurred_at) SELECT 'more', id, 'CAPTURE', 'EUR', 9000000000000000000, 0, 2000, "
        "'2026-03-11Z' FROM organization WHERE external_ref = 'apollo'",
    )
    tamper(engine, "UPDATE money_movement SET recorded_at = '2026-03-12Z' WHERE external_ref = 'more'")
    assert "of apollo for 2026-03" in refusal_of(engine, tmp_path)
    assert in_tables(tmp_path) == mailed(engine) == [("bijou", "EUR")]


def test_a_page_that_cannot_be_made_is_left_out_and_a_fault_of_the_code_stops_all(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theatres(engine, "apollo", "bijou")
    real = drafts.page

    def page(statement: Any, *arguments: Any, **options: Any) -> bytes:
        if statement.party.external_ref == "apollo":
            raise how
        return real(statement, *arguments, **options)

    monkeypatch.setattr(drafts, "page", page)
    how: Exception = UnicodeEncodeError("utf-8", "\udc80", 0, 1, "surrogates not allowed")
    assert "The statement of apollo for 2026-03 in EUR cannot be made: 'utf-8' codec" in refusal_of(engine, tmp_path)
    assert in_tables(tmp_path) == [("bijou", "EUR")]
    how = AttributeError("no such thing")
    with pytest.raises(AttributeError):
        state(engine, tmp_path)


def test_where_no_statement_can_be_made_the_tables_that_are_there_stay(engine: Engine, tmp_path: Path) -> None:
    [theatre] = theatres(engine, "apollo")
    state(engine, tmp_path)
    unbalance(engine, theatre)
    assert refusal_of(engine, tmp_path).startswith(
        "The statements of 2026-03 are not all issued: 0 statements written, 1 left out"
    )
    assert in_tables(tmp_path) == [("apollo", "EUR")]


def test_more_than_a_hundred_are_counted_and_a_hundred_named(engine: Engine, tmp_path: Path) -> None:
    theatres(engine, "zenith", *(f"hall-{number}" for number in range(102)))
    tamper(
        engine,
        "UPDATE ledger_entry SET captures = captures + 1, net = net + 1 FROM organization "
        "WHERE organization.id = organization_id AND external_ref <> 'zenith'",
    )
    refusal = refusal_of(engine, tmp_path)
    assert "1 statement written, 102 left out" in refusal
    assert refusal.endswith(" And 2 more.")
    assert refusal.count("does not add up") == 100


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "Te\u0007atro\u202e\r\nReal\u2028 <b>&"},
        {"name": "x" * 10_000},
        {"name": ""},
        {"locale": "xx_YY@klingon"},
        {"locale": ""},
        {"locale": "e\u0001s"},
        {"contact_email": "not an address"},
        {"contact_email": "a@b.example\r\nBcc: c@d.example"},
        {"external_ref": "../../" + "é/" * 200},
        {"external_ref": "CON"},
    ],
    ids=str,
)
def test_texts_that_are_odd_stop_no_statement_not_even_their_own(
    engine: Engine, tmp_path: Path, odd: dict[str, str]
) -> None:
    theatre = add_organization(engine, **{"contact_email": "a@b.example"} | odd)
    add_movement(engine, theatre, 10_000, "2026-03-10T10:00", reason="\u0001 =cmd()\r\n")
    theatres(engine, "bijou")
    assert state(engine, tmp_path, **MAILED).mails == 2
    assert len(pages(tmp_path)) == 2


@pytest.mark.parametrize(("currency", "page"), [("JPY", "JPY 8,800<"), ("KWD", "KWD 8.800<"), ("CLF", "CLF 0.8800<")])
def test_amounts_have_the_decimals_of_their_currency(engine: Engine, tmp_path: Path, currency: str, page: str) -> None:
    execute(engine, "INSERT INTO currency (code, exponent) VALUES ('CLF', 4) ON CONFLICT DO NOTHING")
    theatres(engine, "apollo", currencies=(currency,))
    state(engine, tmp_path)
    [found] = tmp_path.rglob(f"{currency}.html")
    assert page.rstrip("<").split()[1] in found.read_text("utf-8")


def test_a_place_may_take_longer_than_a_transaction_may_idle(
    engine: Engine, url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theatres(engine, *(f"hall-{number}" for number in range(6)))
    real = Place.writing
    open_at: list[int] = []

    @contextmanager
    def slow(self: Place, *parts: str) -> Iterator[BinaryIO]:
        with real(self, *parts) as file:
            yield file
        with engine.connect() as connection:
            idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slow' AND state LIKE 'idle in%'"
            open_at.append(connection.execute(text(idle)).scalar_one())
        time.sleep(0.2)

    monkeypatch.setattr(Place, "writing", slow)
    limited = connect_engine(url, "slow", limits=SessionLimits(idle_in_transaction_timeout=0.5), connections=2)
    assert issue_statements(limited, MARCH, StatementOptions(Place(tmp_path)), now=NOW).statements == 6
    limited.dispose()
    assert open_at == [0] * 8
