"""What is about months before an organization is paid here was settled elsewhere: whenever it comes, it is not paid."""

from __future__ import annotations

import csv
import itertools
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.conftest import fresh_database
from tests.support.books import (
    APRIL,
    FEBRUARY,
    JANUARY,
    MARCH,
    add_opening_balance,
    balances,
    breaches,
    settle_and_close,
)
from tests.support.history import HISTORY, OPENING, add_sales, books_of, close_through, nets, owed_since
from tests.support.payable import close_owing, pay_from, request, rows
from tests.support.rows import add_movement, add_organization
from tests.support.settled import settle
from tests.support.sql_statements import execute, objection
from tests.support.statements import state
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.paid_from import UnconfirmedError, set_paid_from, waiting
from ticketflow_orch.payouts.request import payouts_due_months
from ticketflow_orch.reports.explain import explain


@pytest.mark.parametrize("everybody", [None, MARCH])
@pytest.mark.parametrize(
    "when", ["before the first closing", "while the first month is closed", "after the first closing"]
)
def test_who_comes_with_two_years_of_history_is_paid_what_is_owed_since(
    engine: Engine, when: str, everybody: Month | None
) -> None:
    pay_from(engine, everybody)
    host = add_organization(engine)
    add_sales(engine, host, JANUARY, APRIL)
    comers = []

    def onboard() -> None:
        for own, opening in itertools.product((None, FEBRUARY, APRIL), (None, OPENING)):
            first = None if own is None else own.first_day
            comer = add_organization(engine, payouts_from=first, joined_on=date(2026, 5, 1))
            add_sales(engine, comer, HISTORY, APRIL)
            if opening is not None:
                add_opening_balance(engine, comer, opening)
            comers.append((comer, own or everybody))

    if when == "before the first closing":
        onboard()
        close_through(engine, HISTORY, JANUARY)
    elif when == "while the first month is closed":
        settle(engine, JANUARY)
        execute(engine, "UPDATE settlement_period SET state = 'CLOSING'")
        onboard()
        close_through(engine, JANUARY, JANUARY)
    else:
        close_through(engine, JANUARY, FEBRUARY)
        onboard()
    [last] = rows(engine, "SELECT max(month) FROM settlement_period WHERE state = 'CLOSED'")
    close_through(engine, Month.of_day(last[0]).next(), APRIL)
    found = books_of(engine)
    for comer, first in [*comers, (host, everybody)]:
        account = (comer, "EUR")
        owed, history = owed_since(engine, first, account)
        assert found[account] == ((0, owed, 0) if first is None else (owed, 0, history)), (when, first)
    paid = dict(rows(engine, "SELECT organization_id, CAST(sum(amount) AS bigint) FROM payout GROUP BY 1"))
    assert paid == {comer: owed_since(engine, first, (comer, "EUR"))[0] for comer, first in comers if first} | (
        {host: owed_since(engine, everybody, (host, "EUR"))[0]} if everybody else {}
    )
    assert breaches(engine) == []


@pytest.mark.every_server
def test_history_that_comes_after_payments_stands_in_the_books_and_is_not_paid(engine: Engine) -> None:
    pay_from(engine, MARCH)
    organization = add_organization(engine)
    add_sales(engine, organization, MARCH, APRIL)
    close_through(engine, MARCH, MARCH)
    add_movement(engine, organization, 400_000, "2026-01-10T10:00")
    add_movement(engine, organization, 300_000, "2026-02-10T10:00")
    close_through(engine, APRIL, APRIL)
    april = nets(engine)[organization, "EUR"][APRIL]
    columns = ("net", "settled_elsewhere", "payable", "closing")
    assert balances(engine, *columns, where="month = '2026-04-01'") == [(616_000 + april, 616_000, april, 0)]


def test_while_payouts_are_off_nothing_counts_as_paid(engine: Engine) -> None:
    pay_from(engine, None)
    organization = add_organization(engine)
    add_sales(engine, organization, JANUARY, FEBRUARY)
    close_through(engine, JANUARY, FEBRUARY)
    net = nets(engine)[organization, "EUR"]
    assert balances(engine, "payable", "closing") == [(0, net[JANUARY]), (0, net[JANUARY] + net[FEBRUARY])]
    with engine.connect() as connection:
        assert [(one.currency, one.organizations, one.amount) for one in waiting(connection)] == [
            ("EUR", 1, net[JANUARY] + net[FEBRUARY])
        ]
        assert payouts_due_months(connection) == ()


def test_a_month_that_was_paid_is_not_explained_by_payouts_that_were_turned_off_since(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="hall")
    add_sales(engine, organization, JANUARY, FEBRUARY)
    pay_from(engine, JANUARY)
    close_through(engine, JANUARY, JANUARY)
    set_paid_from(engine, None, "ana")
    with engine.connect() as connection:
        found = [explain(connection, "hall", month).not_paid_here for month in (JANUARY, FEBRUARY)]
    assert found == [None, "Payouts are off: what is due is carried."]


def test_an_opening_balance_is_owed_and_waits_for_the_first_month_that_is_paid(engine: Engine) -> None:
    pay_from(engine, MARCH)
    organization = add_organization(engine)
    add_opening_balance(engine, organization, OPENING)
    add_sales(engine, organization, JANUARY, MARCH)
    close_through(engine, JANUARY, MARCH)
    net = nets(engine)[organization, "EUR"]
    assert balances(engine, "opening", "settled_elsewhere", "payable", "closing") == [
        (OPENING, net[JANUARY], 0, OPENING),
        (OPENING, net[FEBRUARY], 0, OPENING),
        (OPENING, 0, OPENING + net[MARCH], 0),
    ]


@pytest.mark.every_server
@pytest.mark.parametrize("first", [JANUARY, FEBRUARY])
def test_balances_from_before_history_was_kept_stay_what_they_were(engine: Engine, first: Month) -> None:
    pay_from(engine, None)
    organization = add_organization(engine)
    add_sales(engine, organization, JANUARY, MARCH)
    settle(engine, JANUARY)
    # As closings left it while payouts were off: due counted as paid, and no payout anywhere.
    _close_as_before(engine, JANUARY)
    net = nets(engine)[organization, "EUR"]
    if first == JANUARY:
        with pytest.raises(UnconfirmedError) as asked:
            set_paid_from(engine, first, "ana")
        assert [one.amount for one in asked.value.pays] == [net[JANUARY]]
    set_paid_from(engine, first, "ana", confirmed=True)
    with engine.connect() as connection:
        assert payouts_due_months(connection) == ((JANUARY,) if first == JANUARY else ())
    request(engine, JANUARY)
    close_through(engine, FEBRUARY, MARCH)
    assert balances(engine, "settled_elsewhere", "payable") == [(0, net[month]) for month in (JANUARY, FEBRUARY, MARCH)]
    paid = [month for (month,) in rows(engine, "SELECT month FROM payout ORDER BY month")]
    assert paid == [month.first_day for month in months_between(first, MARCH)]
    assert breaches(engine) == []


def _close_as_before(engine: Engine, month: Month) -> None:
    """Close a settled month with balances that know nothing of history, all of them paid out."""
    day = month.first_day
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = :day", day=day)
    execute(
        engine,
        """
        INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due, payable,
            closing)
        SELECT organization_id, currency, month, 0, net, 0, net, net, 0 FROM ledger_entry WHERE month = :day
        """,
        day=day,
    )
    execute(
        engine,
        """
        UPDATE settlement_period SET state = 'CLOSED', closed_at = now(), closed_by = 'test', closed_role = current_user
        WHERE month = :day
        """,
        day=day,
    )


def test_history_that_was_left_in_or_taken_off_by_another_hand_is_found(engine: Engine) -> None:
    pay_from(engine, MARCH)
    organization = add_organization(engine, external_ref="hall")
    add_sales(engine, organization, JANUARY, FEBRUARY)
    settle_and_close(engine, JANUARY, FEBRUARY)
    net = nets(engine)[organization, "EUR"]
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(
            text("""
                UPDATE organization_balance SET settled_elsewhere = settled_elsewhere - 1, due = due + 1,
                    closing = closing + 1
                WHERE month = '2026-02-01'
            """)
        )
    [said] = breaches(engine)
    assert said == f"2026-02 hall EUR settled elsewhere {net[FEBRUARY] - 1} instead of {net[FEBRUARY]}"


def test_a_statement_names_what_was_settled_elsewhere(engine: Engine, tmp_path: Path) -> None:
    pay_from(engine, FEBRUARY)
    for name in ("old", "new"):
        add_organization(engine, external_ref=name, locale="en")
    old, new = (number for (number,) in rows(engine, "SELECT id FROM organization ORDER BY id"))
    add_sales(engine, old, JANUARY, FEBRUARY)
    add_sales(engine, new, FEBRUARY, FEBRUARY)
    settle_and_close(engine, JANUARY, FEBRUARY)
    add_movement(engine, old, 50_000, "2026-01-12T10:00")
    settle_and_close(engine, MARCH)
    for month in (JANUARY, FEBRUARY, MARCH):
        state(engine, tmp_path, month)
    pages = {
        (month, name): (tmp_path / str(month) / "organizations" / name / "EUR.html").read_text("utf-8")
        for month in (JANUARY, FEBRUARY, MARCH)
        for name in (("old", "new") if month == FEBRUARY else ("old",))
    }
    note = "What is about months before February 2026 was settled elsewhere"
    assert [key for key, page in pages.items() if note in page] == [(JANUARY, "old"), (MARCH, "old")]
    assert [key for key, page in pages.items() if "Settled elsewhere" in page] == [(JANUARY, "old"), (MARCH, "old")]
    assert "<th>Settled elsewhere</th><td>-440.00</td>" in pages[MARCH, "old"].replace("\N{MINUS SIGN}", "-")
    with (tmp_path / "2026-03" / "statements.csv").open(encoding="utf-8") as file:
        march = {row["organization"]: row for row in csv.DictReader(file)}
    assert (march["old"]["settled_elsewhere"], march["old"]["due"]) == ("440.00", "0.00")


def test_a_database_with_balances_comes_to_know_of_history_and_keeps_them(server: EmbeddedServer) -> None:
    with fresh_database(server, "template1") as url:
        migrate(url, "0014")
        engine = connect_engine(url, "pytest", connections=1)
        organization = add_organization(engine)
        close_owing(engine, {organization: 88_000}, JANUARY)
        kept = "SELECT organization_id, month, opening, net, returned, due, payable, closing FROM organization_balance"
        before = rows(engine, kept)
        migrate(url)
        assert rows(engine, kept) == before
        assert balances(engine, "settled_elsewhere", "payouts_from", "knows_history") == [(0, None, False)]
        unpaid = "UPDATE organization_balance SET knows_history = true"
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            assert "organization_balance_payouts_from_check" in str(objection(lambda: connection.execute(text(unpaid))))
        engine.dispose()
