"""Changing from when on people are paid: confirmed where it pays, refused where it cannot be, kept with who did it."""

from __future__ import annotations

from datetime import date

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.books import (
    APRIL,
    FEBRUARY,
    JANUARY,
    MARCH,
    balances,
    breaches,
    settle_and_close,
)
from tests.support.history import add_sales, books_of, close_through, nets, owed_since
from tests.support.payable import close_owing, pay_from, request, rows
from tests.support.rows import add_movement, add_organization
from tests.support.settled import settle
from tests.support.sql_statements import execute, objection, refusal
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.actions import hold, reject
from ticketflow_orch.payouts.paid_from import UnconfirmedError, comes_off, read_paid_from, set_paid_from


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


def test_what_closed_months_owe_and_was_not_requested_is_no_history(engine: Engine) -> None:
    organization = add_organization(engine)
    close_owing(engine, {organization: 88_000}, JANUARY)
    with pytest.raises(TicketflowError, match="2026-01 is closed and owes"):
        set_paid_from(engine, MARCH, "ana", confirmed=True)
