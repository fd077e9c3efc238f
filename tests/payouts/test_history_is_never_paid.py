"""What is about months before an organization is paid here was settled elsewhere: whenever it comes, it is not paid."""

from __future__ import annotations

import csv
import itertools
import os
from collections import defaultdict
from datetime import date
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.conftest import fresh_database
from tests.statements.books import state
from tests.support.books import (
    APRIL,
    FEBRUARY,
    FIRST,
    JANUARY,
    MARCH,
    add_opening_balance,
    balances,
    breaches,
    close,
    set_minimum,
    settle_and_close,
)
from tests.support.folders import Rows, story, write_folder
from tests.support.oracle import AMOUNTS, Business, expected, record
from tests.support.payable import close_owing, pay_from, request, rows
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import NOW, settle
from tests.support.sql_statements import execute, objection, refusal
from ticketflow_orch.closing import close_month
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import ImportRefused, ImportResult, import_folder
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.actions import hold, reject
from ticketflow_orch.payouts.paid_from import UnconfirmedError, comes_off, read_paid_from, set_paid_from, waiting
from ticketflow_orch.payouts.request import payouts_due_months
from ticketflow_orch.reports.explain import explain

SEED = int(os.environ["CHAOS_SEED"])
EXAMPLES = int(os.environ.get("CHAOS_EXAMPLES", "3"))
STEPS = int(os.environ.get("CHAOS_STEPS", "40"))
# Two years before the first month in which anybody sold anything here.
HISTORY = Month(2024, 1)
NET = AMOUNTS.index("net")
OPENING = 7_777


def add_sales(engine: Engine, organization: int, first: Month, last: Month) -> None:
    """A sale in each month, each of another amount, and a refund in every third."""
    with engine.begin() as connection:
        connection.execute(
            text("""
                WITH sale AS (
                    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount,
                        commission_rate_bps, commission_tax_bps, occurred_at)
                    SELECT :id || ' ' || month, :id, 'CAPTURE', 'EUR',
                        100000 + 13 * extract(month FROM month)::int + :id, 1000, 2000, month + interval '9 days'
                    FROM generate_series(CAST(:first AS date), CAST(:last AS date), '1 month') AS month
                    RETURNING id, external_ref, occurred_at
                )
                INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, reverses_id,
                    commission_rate_bps, commission_tax_bps, occurred_at)
                SELECT external_ref || ' back', :id, 'REFUND', 'EUR', -7, id, 1000, 2000, occurred_at
                FROM sale WHERE extract(month FROM occurred_at)::int % 3 = 0
            """.replace(":id", "CAST(:id AS bigint)")),
            {"id": organization, "first": first.first_day, "last": last.first_day},
        )  # fmt: skip


def nets(engine: Engine) -> dict[tuple[int, str], dict[Month, int]]:
    """What all movements come to, by the oracle: organization and currency, then month."""
    found: dict[tuple[int, str], dict[Month, int]] = defaultdict(dict)
    for (organization, month, currency), amounts in expected(engine).items():
        found[organization, currency][Month.parse(month)] = amounts[NET]
    return found


def brought(engine: Engine) -> dict[tuple[int, str], int]:
    return {
        (row[0], row[1]): row[2]
        for row in rows(engine, "SELECT organization_id, currency, amount FROM opening_balance")
    }


def books_of(engine: Engine) -> dict[tuple[int, str], tuple[int, int, int]]:
    """What was paid for good, what is carried and what was settled elsewhere, by organization and currency."""
    found = rows(
        engine,
        """
        SELECT organization_id, currency,
            sum(payable) - sum(returned), (array_agg(closing ORDER BY month DESC))[1], sum(settled_elsewhere)
        FROM organization_balance GROUP BY 1, 2
        """,
    )
    return {(row[0], row[1]): (int(row[2]), int(row[3]), int(row[4])) for row in found}


def owed_since(engine: Engine, first: Month | None, account: tuple[int, str]) -> tuple[int, int]:
    """What an account is owed by months from `first` on (None: all) and by its opening balance, and its history."""
    by_month = nets(engine)[account]
    history = sum(net for month, net in by_month.items() if first is not None and month < first)
    return sum(by_month.values()) - history + brought(engine).get(account, 0), history


def close_through(engine: Engine, first: Month, last: Month) -> None:
    for month in months_between(first, last):
        settle(engine, month)
        close_month(engine, month, now=NOW, first_month=HISTORY, closed_by="test", run_id="run")
        request(engine, month)


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


def test_payouts_that_begin_later_take_off_what_was_carried_as_history(engine: Engine) -> None:
    pay_from(engine, None)
    organization = add_organization(engine)
    add_sales(engine, organization, JANUARY, APRIL)
    close_through(engine, JANUARY, MARCH)
    net = nets(engine)[organization, "EUR"]
    with pytest.raises(UnconfirmedError, match=r"From 2026-03 on, closed months pay .* EUR of 1 organization") as asked:
        set_paid_from(engine, MARCH, "ana")
    assert [one.amount for one in asked.value.pays] == [net[MARCH]]
    with engine.connect() as connection:
        assert read_paid_from(connection).everybody is None
    set_paid_from(engine, MARCH, "ana", confirmed=asked.value.pays)
    close_through(engine, APRIL, APRIL)
    columns = ("settled_elsewhere", "payable", "closing")
    assert balances(engine, *columns, where="month = '2026-04-01'") == [
        (net[JANUARY] + net[FEBRUARY], net[MARCH] + net[APRIL], 0)
    ]
    assert breaches(engine) == []


def test_what_a_later_month_takes_off_of_closed_ones_is_said_until_it_is_off(engine: Engine) -> None:
    pay_from(engine, None)
    organization = add_organization(engine)
    add_sales(engine, organization, JANUARY, MARCH)
    close_through(engine, JANUARY, FEBRUARY)
    set_paid_from(engine, APRIL, "ana")
    net = nets(engine)[organization, "EUR"]
    with engine.connect() as connection:
        assert [(one.organizations, one.amount) for one in comes_off(connection)] == [(1, net[JANUARY] + net[FEBRUARY])]
    close_through(engine, MARCH, MARCH)
    assert balances(engine, "settled_elsewhere", "closing", where="month = '2026-03-01'") == [(sum(net.values()), 0)]
    with engine.connect() as connection:
        assert comes_off(connection) == ()


def test_a_month_that_was_paid_is_not_explained_by_payouts_that_were_turned_off_since(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="hall")
    add_sales(engine, organization, JANUARY, FEBRUARY)
    pay_from(engine, JANUARY)
    close_through(engine, JANUARY, JANUARY)
    set_paid_from(engine, None, "ana")
    with engine.connect() as connection:
        found = [explain(connection, "hall", month).not_paid_here for month in (JANUARY, FEBRUARY)]
    assert found == [None, "Payouts are off: what is due is carried."]


@pytest.mark.every_server
@pytest.mark.parametrize("own", [False, True])
def test_an_earlier_month_shows_what_it_pays_and_gives_back_what_had_come_off(engine: Engine, own: bool) -> None:
    pay_from(engine, MARCH)
    add_organization(engine, external_ref="hall")
    idle = add_organization(engine, external_ref="idle", currency="JPY")
    [hall] = [number for (number,) in rows(engine, "SELECT id FROM organization WHERE external_ref = 'hall'")]
    add_sales(engine, hall, JANUARY, MARCH)
    add_movement(engine, idle, 500_000, "2026-01-10T10:00", currency="USD")
    close_through(engine, JANUARY, MARCH)
    net = nets(engine)[hall, "EUR"]
    whose = "hall" if own else None
    with pytest.raises(UnconfirmedError) as asked:
        set_paid_from(engine, JANUARY, "ana", organization=whose)
    shown = {one.currency: (one.organizations, one.amount) for one in asked.value.pays}
    assert shown == {"EUR": (1, net[JANUARY] + net[FEBRUARY])} | ({} if own else {"USD": (1, 440_000)})
    set_paid_from(engine, JANUARY, "ana", organization=whose, confirmed=True)
    settle_and_close(engine, APRIL)
    columns = ("currency", "settled_elsewhere", "payable")
    # The currency in which nobody sold anything since is given back, too.
    given_back = [] if own else [("USD", -440_000, 440_000)]
    assert balances(engine, *columns, where="month = '2026-04-01' AND settled_elsewhere <> 0") == [
        ("EUR", -net[JANUARY] - net[FEBRUARY], net[JANUARY] + net[FEBRUARY]), *given_back,
    ]  # fmt: skip
    assert breaches(engine) == []


def test_who_is_paid_as_all_others_again_is_paid_from_their_month_on_once_that_is_confirmed(engine: Engine) -> None:
    hall = add_organization(engine, external_ref="hall", payouts_from=MARCH.first_day)
    add_sales(engine, hall, JANUARY, FEBRUARY)
    pay_from(engine, JANUARY)
    close_through(engine, JANUARY, FEBRUARY)
    with pytest.raises(UnconfirmedError, match="From 2026-01 on, closed months pay") as asked:
        set_paid_from(engine, None, "ana", organization="hall")
    assert asked.value.month == JANUARY


def test_a_later_month_is_refused_where_months_before_it_were_paid_here(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="hall")
    add_sales(engine, organization, JANUARY, APRIL)
    pay_from(engine, JANUARY)
    settle_and_close(engine, JANUARY)
    amount = f"{nets(engine)[organization, 'EUR'][JANUARY] / 100:,.2f} EUR"
    not_requested = rf"2026-01 is closed and owes hall {amount}, which is not requested yet; materialize payouts for"
    for later in (MARCH, None):
        with pytest.raises(TicketflowError, match=not_requested):
            set_paid_from(engine, later, "ana", confirmed=True)
    request(engine, JANUARY)
    for whose in (None, "hall"):
        with pytest.raises(
            TicketflowError, match=rf"The payout of {amount} to hall for 2026-01 is REQUESTED, so 2026-01 was"
        ):
            set_paid_from(engine, MARCH, "ana", organization=whose, confirmed=True)
    with engine.connect() as connection:
        assert read_paid_from(connection).everybody == JANUARY
    assert rows(engine, "SELECT payouts_from FROM organization") == [(None,)]


def test_a_first_month_that_was_set_too_early_is_corrected_by_rejecting_what_was_not_sent(engine: Engine) -> None:
    organization = add_organization(engine)
    add_sales(engine, organization, JANUARY, APRIL)
    pay_from(engine, JANUARY)
    close_through(engine, JANUARY, MARCH)
    with transaction(engine) as connection:
        held = rows(engine, "SELECT CAST(public_id AS text) FROM payout WHERE month < '2026-03-01' ORDER BY month")
        for (reference,) in held:
            hold(connection, reference, "paid elsewhere", "ana")
            reject(connection, reference, "paid elsewhere", "ana")
    set_paid_from(engine, MARCH, "ana")
    close_through(engine, APRIL, APRIL)
    owed, history = owed_since(engine, MARCH, (organization, "EUR"))
    assert books_of(engine) == {(organization, "EUR"): (owed, 0, history)}
    assert breaches(engine) == []


def test_payouts_that_are_turned_off_and_on_again_carry_meanwhile(engine: Engine) -> None:
    organization = add_organization(engine)
    add_sales(engine, organization, JANUARY, APRIL)
    pay_from(engine, FEBRUARY)
    close_through(engine, JANUARY, FEBRUARY)
    set_paid_from(engine, None, "ana")
    # More history, which comes while nobody is paid.
    add_movement(engine, organization, 50_000, "2026-01-11T10:00")
    settle_and_close(engine, MARCH)
    assert balances(engine, "settled_elsewhere", "payable", where="month = '2026-03-01'") == [(0, 0)]
    set_paid_from(engine, FEBRUARY, "ana", confirmed=True)
    close_through(engine, APRIL, APRIL)
    owed, history = owed_since(engine, FEBRUARY, (organization, "EUR"))
    assert books_of(engine) == {(organization, "EUR"): (owed, 0, history)}
    assert breaches(engine) == []


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


def test_a_change_waits_for_a_month_that_is_being_closed(engine: Engine) -> None:
    add_sales(engine, add_organization(engine), JANUARY, JANUARY)
    settle(engine, JANUARY)
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-01-01'")
    with pytest.raises(TicketflowError, match="2026-01 is being closed; let that end by `ticketflow close 2026-01`"):
        set_paid_from(engine, MARCH, "ana")


@pytest.mark.parametrize(
    ("month", "organization", "sentence"),
    [
        (Month(2014, 10), None, "The payouts begin with 2014-10 already; nothing is changed."),
        (None, "hall", "Organization hall has no month of its own; nothing is changed."),
        (MARCH, "hill", "There is no organization 'hill'; references are those of the application."),
    ],
)
def test_what_changes_nothing_is_refused_in_a_sentence(
    engine: Engine, month: Month | None, organization: str | None, sentence: str
) -> None:
    add_organization(engine, external_ref="hall")
    with pytest.raises(TicketflowError) as refused:
        set_paid_from(engine, month, "ana", organization=organization)
    assert str(refused.value) == sentence
    assert rows(engine, "SELECT * FROM installation_change WHERE changed_by = 'ana'") == []


def test_who_changed_it_and_when_is_kept_for_every_role(engine: Engine) -> None:
    hall = add_organization(engine, external_ref="hall")
    set_paid_from(engine, MARCH, "ana")
    set_paid_from(engine, APRIL, "eva", organization="hall")
    # The application, by its role.
    execute(engine, "UPDATE organization SET payouts_from = '2026-05-01' WHERE id = :id", id=hall)
    kept = "SELECT name, before, after, changed_by, changed_at <= clock_timestamp() FROM"
    assert rows(engine, f"{kept} installation_change WHERE name = 'payouts_from' ORDER BY id")[-1] == (
        "payouts_from", "2014-10-01", "2026-03-01", "ana", True,
    )  # fmt: skip
    [[me]] = rows(engine, "SELECT CAST(session_user AS text)")
    assert rows(engine, f"{kept} organization_change ORDER BY id") == [
        ("payouts_from", None, "2026-04-01", "eva", True),
        ("payouts_from", "2026-04-01", "2026-05-01", me, True),
    ]
    with engine.connect() as connection:
        [own] = read_paid_from(connection).own
    assert (own.organization, own.payouts_from, own.changed_by) == ("hall", Month(2026, 5), me)
    assert "changes of organizations are kept" in refusal(engine, "DELETE FROM organization_change")


def test_once_there_are_books_no_other_hand_changes_from_when_on_people_are_paid(engine: Engine) -> None:
    hall, new = (add_organization(engine, external_ref=name) for name in ("hall", "new"))
    add_sales(engine, hall, JANUARY, MARCH)
    pay_from(engine, JANUARY)
    own = "UPDATE organization SET payouts_from = '2026-03-01' WHERE id = :id"
    everybody = "UPDATE installation SET payouts_from = '2026-03-01', changed_by = 'ana'"
    settle(engine, JANUARY)
    with engine.begin() as meanwhile:
        meanwhile.execute(text("SET LOCAL lock_timeout = '100ms'"))
        with engine.begin() as application:
            application.execute(text(own), {"id": new})
            # A month begins to be closed after the change or before it.
            objects = objection(lambda: meanwhile.execute(text("LOCK settlement_period IN SHARE ROW EXCLUSIVE MODE")))
    assert "lock timeout" in str(objects)
    execute(engine, "UPDATE organization SET payouts_from = NULL WHERE id = :id", id=new)
    close_through(engine, JANUARY, FEBRUARY)
    for statement in (own, everybody):
        parameters = {"id": hall} if statement == own else {}
        assert "there are books: `ticketflow payouts from` changes" in refusal(engine, statement, **parameters)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        other = add_organization(engine, joined_on=date(2026, 5, 1))
        with pytest.raises(DBAPIError, match="change organization in READ COMMITTED"):
            old.execute(text("UPDATE organization SET payouts_from = '2026-03-01' WHERE id = :id"), {"id": other})
    # Who has no books yet is the application's as before.
    assert execute(engine, own, id=other) == 1
    close_through(engine, MARCH, MARCH)
    owed, _ = owed_since(engine, JANUARY, (hall, "EUR"))
    assert books_of(engine)[hall, "EUR"] == (owed, 0, 0)


@pytest.mark.parametrize("day", ["2026-03-02", "infinity", "12000-01-01", "4000-01-01 BC"])
def test_the_database_takes_only_a_month(engine: Engine, day: str) -> None:
    statement = "UPDATE organization SET payouts_from = CAST(:day AS date)"
    add_organization(engine)
    assert "organization_payouts_from_check" in refusal(engine, statement, day=day)


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


def bring(engine: Engine, folder: Path, *months: str | None) -> ImportResult:
    """Import organizations that are paid from these months on; None: the file has no such column."""
    organizations: Rows = [
        story()["organizations"][0]
        | {"external_ref": f"o{number}"}
        | ({} if month is None else {"payouts_from": month})
        for number, month in enumerate(months, 1)
    ]
    return import_folder(engine, write_folder(folder, {"organizations": organizations}), FIRST)


def test_an_import_says_from_when_on_an_organization_is_paid(engine: Engine, tmp_path: Path) -> None:
    bring(engine, tmp_path, "2026-03", "")
    found = "SELECT payouts_from FROM organization ORDER BY external_ref"
    assert rows(engine, found) == [(date(2026, 3, 1),), (None,)]
    # As it is there, without the column, and after somebody has changed it.
    assert bring(engine, tmp_path, "2026-03", "").import_id is None
    assert bring(engine, tmp_path, None, None).import_id is None
    set_paid_from(engine, APRIL, "ana", organization="o1")
    assert bring(engine, tmp_path, "2026-03", "").import_id is None
    with pytest.raises(ImportRefused) as refused:
        bring(engine, tmp_path, "2026-05", "2026-13")
    assert [(one.line, one.value, one.reason) for one in refused.value.problems] == [
        (2, "2026-05", "differs from the row that is there already, which holds '2026-04'"),
        (3, "2026-13", "is not a month written YYYY-MM"),
    ]
    assert rows(engine, found) == [(date(2026, 4, 1),), (None,)]


def test_an_import_warns_of_history_that_the_next_closing_pays(engine: Engine, tmp_path: Path) -> None:
    pay_from(engine, JANUARY)
    add_sales(engine, add_organization(engine), JANUARY, FEBRUARY)
    settle_and_close(engine, JANUARY, FEBRUARY)
    organizations = [
        story()["organizations"][0] | {"external_ref": name, "payouts_from": month}
        for name, month in (("elsewhere", "2026-03"), ("here", ""), ("late", "2026-02"))
    ]
    movements = [
        story()["money_movements"][1]
        | {"external_ref": f"{name} {month}", "organization_ref": name, "reservation_ref": ""}
        | {"occurred_at": f"{month}-10T10:00:00Z"}
        for name in ("elsewhere", "here", "late")
        for month in ("2026-01", "2026-02", "2026-03")
    ]
    brought = write_folder(tmp_path, {"organizations": organizations, "money_movements": movements})
    [warning] = import_folder(engine, brought, FIRST).warnings
    assert warning.startswith(
        "3 movements of 2 organizations new to the books, such as 'here', in months until 2026-02, which are closed: "
        "the next closing pays them."
    )
    settle_and_close(engine, MARCH)
    # Who has books sells late, as anybody may.
    late = [movements[1] | {"external_ref": "late", "organization_ref": "here"}]
    assert (
        import_folder(engine, write_folder(tmp_path, {"organizations": [], "money_movements": late}), FIRST).warnings
        == ()
    )


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


def test_the_role_of_runs_is_told_that_it_may_not_decide(engine: Engine, url: URL) -> None:
    execute(engine, "CREATE ROLE history_reader LOGIN")
    execute(engine, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO history_reader")
    reader = connect_engine(url.set(username="history_reader"), "pytest", connections=1)
    try:
        with pytest.raises(TicketflowError, match="may not change from when on people are paid; run it as the owner"):
            set_paid_from(reader, MARCH, "ana")
    finally:
        reader.dispose()
        execute(engine, "DROP OWNED BY history_reader")
        execute(engine, "DROP ROLE history_reader")


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


# --- Whatever happens in whatever order

MONTHS = tuple(months_between(Month(2025, 11), APRIL))
DECISIONS = (None, Month(2025, 12), JANUARY, FEBRUARY, MARCH)


@pytest.mark.parametrize("seed", range(SEED, SEED + EXAMPLES))
def test_what_is_paid_is_what_is_owed_since_then_in_whatever_order_things_come(engine: Engine, seed: int) -> None:
    life = Life(engine, Random(seed))
    for _ in range(STEPS):
        life.step()
        assert breaches(engine) == [], f"CHAOS_SEED={seed}"
    life.come_to_rest()
    assert breaches(engine) == [], f"CHAOS_SEED={seed}"
    found = books_of(engine)
    for account in nets(engine).keys() | brought(engine).keys():
        first = life.paid_from(account[0])
        owed, history = owed_since(engine, first, account)
        paid, carried, settled = found[account]
        if first is None:
            # What came off while it was paid stays off until it is paid again.
            assert paid + carried + settled == owed, f"CHAOS_SEED={seed}"
        else:
            assert (paid + carried, settled) == (owed, history), f"CHAOS_SEED={seed}"


class Life:
    """Organizations that come with their history, and people who change their mind about from when on they are paid."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self.engine, self.random = engine, random
        self.names = [f"hall {number}" for number in range(4)]
        self.ids = [add_organization(engine, external_ref=name, joined_on=date(2026, 6, 1)) for name in self.names]
        set_minimum(engine, 3_000)
        pay_from(engine, random.choice(DECISIONS))
        self.business = Business(
            random, self.ids, since=instant("2025-11-01T00:00"), until=instant("2026-05-01T00:00"),
            ids=itertools.count(1),
        )  # fmt: skip
        self.sell()

    def step(self) -> None:
        does = [self.sell, self.close_one, self.decide, self.answer, self.bring]
        self.random.choices(does, [5, 4, 5, 3, 1])[0]()

    def sell(self) -> None:
        record(self.engine, self.business.movements(self.random.choice([1, 5, 30])))

    def bring(self) -> None:
        organization = self.random.choice(self.ids)
        there = rows(self.engine, "SELECT FROM opening_balance WHERE organization_id = :id", id=organization)
        if not there:
            add_opening_balance(self.engine, organization, self.random.choice([-OPENING, OPENING]))

    def close_one(self) -> None:
        month = self.turn()
        if month <= MONTHS[-1]:
            settle(self.engine, month)
            close(self.engine, month, chunk_size=self.random.choice([1, 3, 100]))
            if self.random.random() < 0.7:
                self.pay()

    def turn(self) -> Month:
        [[last]] = rows(self.engine, "SELECT max(month) FROM settlement_period WHERE state = 'CLOSED'")
        return MONTHS[0] if last is None else Month.of_day(last).next()

    def pay(self) -> None:
        with self.engine.connect() as connection:
            due = payouts_due_months(connection)
        for month in due:
            request(self.engine, month)

    def decide(self) -> None:
        name = self.random.choice([None, None, *self.names])
        try:
            set_paid_from(self.engine, self.random.choice(DECISIONS), "ana", organization=name, confirmed=True)
        except TicketflowError:
            return

    def answer(self) -> None:
        for before, after in (("REQUESTED", "CONFIRMED"), ("REQUESTED", "REJECTED"), ("CONFIRMED", "RETURNED")):
            execute(
                self.engine,
                """
                UPDATE payout SET state = :after, answered_at = clock_timestamp()
                WHERE state = :before AND hashint8(id + CAST(:salt AS bigint)) % 4 = 0
                """,
                before=before, after=after, salt=self.random.randrange(10**6),
            )  # fmt: skip

    def come_to_rest(self) -> None:
        self.pay()
        while (month := self.turn()) <= MONTHS[-1].next():
            settle_and_close(self.engine, month)
            self.pay()

    def paid_from(self, organization: int) -> Month | None:
        [[day]] = rows(
            self.engine,
            """
            SELECT coalesce(payouts_from, (SELECT CAST(payouts_from AS date) FROM installation)) FROM organization
            WHERE id = :id
            """,
            id=organization,
        )
        return None if day is None else Month.of_day(day)


def test_what_closed_months_owe_and_was_not_requested_is_no_history(engine: Engine) -> None:
    organization = add_organization(engine)
    close_owing(engine, {organization: 88_000}, JANUARY)
    with pytest.raises(TicketflowError, match="2026-01 is closed and owes"):
        set_paid_from(engine, MARCH, "ana", confirmed=True)
