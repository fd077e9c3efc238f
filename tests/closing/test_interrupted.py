"""Closing a month while others are at work, and being killed at it: one result, and nothing posted that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from tests.support.books import (
    FEBRUARY,
    FIRST,
    JANUARY,
    MARCH,
    add_opening_balance,
    add_payout,
    balances,
    breaches,
    close,
    settle_and_close,
    state_of,
)
from tests.support.rows import add_movement, add_organization
from tests.support.sessions import PATIENCE, becomes, two_sessions
from tests.support.settled import NOW, settle
from tests.support.sql_statements import LEDGER_ROW, execute, insertion
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import freeze
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.settlement import IncompleteSettlementError
from ticketflow_orch.settlement.passes import begin_or_join

POST = insertion("ledger_entry", LEDGER_ROW | {"organization_id": "(SELECT 1000 + count(*) FROM ledger_entry)"})
CLOSING = "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-03-01'"
WRITE = """
    INSERT INTO organization_balance (organization_id, currency, month, previous_month, opening, net, returned, due,
        payable, closing)
    SELECT organization_id, currency, '2026-03-01', '2026-02-01', 0, net, 0, net, net, 0
    FROM ledger_entry WHERE organization_id = {organization} AND month = '2026-03-01'
"""


class Killed(Exception):
    """The process is gone."""


@contextmanager
def killed_at(engine: Engine, place: int) -> Iterator[None]:
    """Nothing is executed from the statement at `place` on, as if the process were gone."""
    executed = 0

    @event.listens_for(engine, "before_cursor_execute")
    def die(*_: object) -> None:
        nonlocal executed
        executed += 1
        if executed > place:
            raise Killed

    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", die)


def prepare(engine: Engine) -> list[int]:
    """February is closed and March settled; with a carry, something brought along and a payout that came back."""
    organizations = [add_organization(engine) for _ in range(5)]
    for number, organization in enumerate(organizations):
        add_movement(engine, organization, 1000 + number, "2026-02-10T10:00")
        add_movement(engine, organization, 10 + number, "2026-03-10T10:00")
    settle_and_close(engine, FEBRUARY)
    add_payout(engine, organizations[1], FEBRUARY, "REJECTED")
    add_opening_balance(engine, organizations[2], -300, "USD")
    settle(engine, MARCH)
    return organizations


def whole(engine: Engine) -> list[tuple[Any, ...]]:
    return balances(engine, "organization_id", "currency", "month", "previous_month", "opening", "returned", "closing")


@pytest.mark.every_server
def test_a_closing_that_is_killed_at_any_statement_goes_on_to_the_same_books(engine: Engine) -> None:
    prepare(engine)
    place, survived = 0, False
    while not survived:
        try:
            with killed_at(engine, place):
                close(engine, MARCH, chunk_size=2)
            survived = True
        except Killed:
            place += 1
    # Killed before each of its statements in turn, each time by one that had gone on from where the last one ended.
    assert place > 20
    assert close(engine, MARCH).found_closed
    assert state_of(engine, MARCH) == "CLOSED"
    assert [row[4:] for row in whole(engine) if row[2] == MARCH.first_day] == [
        (0, 0, 0), (0, 881, 0), (0, 0, 0), (-300, 0, -300), (0, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert breaches(engine) == []


@pytest.mark.every_server
def test_two_closings_at_once_close_once(engine: Engine) -> None:
    prepare(engine)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: close(engine, MARCH, chunk_size=1), range(4)))
    assert sum(result.rows_new for result in results) == 6
    assert {result.closed_at for result in results} == {results[0].closed_at}
    assert breaches(engine) == []


def test_a_closing_that_meets_another_waits_for_its_chunk_and_takes_nothing_twice(engine: Engine) -> None:
    organizations = prepare(engine)
    freeze(engine, MARCH, NOW, FIRST)
    with ThreadPoolExecutor(1) as threads, engine.connect() as other:
        other.execute(text("SELECT FROM settlement_period WHERE month = '2026-03-01' FOR UPDATE"))
        closing = threads.submit(close, engine, MARCH)
        assert becomes(lambda: waits(engine), unless=closing.done)
        # The other closing has written the chunk; only then the provider sends money back.
        other.execute(text(WRITE.format(organization=organizations[3])))
        add_payout(engine, organizations[3], FEBRUARY, "RETURNED")
        other.commit()
        assert closing.result(PATIENCE).rows_new == 5
    settle_and_close(engine, MARCH.next())
    returned = balances(engine, "month", "returned", where=f"organization_id = {organizations[3]} AND returned > 0")
    assert returned == [(MARCH.next().first_day, 883)]


def waits(engine: Engine) -> bool:
    with engine.connect() as connection:
        waiting = text("SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return connection.execute(waiting).first() is not None


# --- Posting and closing, in every order


@pytest.mark.every_server
def test_a_closing_waits_for_whoever_is_posting_and_balances_what_they_posted(engine: Engine) -> None:
    organization = prepare(engine)[0]
    with ThreadPoolExecutor(1) as threads, two_sessions(engine) as (poster, _):
        # An adjustment of nothing, and in a currency that shows whether it was seen: the ledger stays honest.
        nothing = dict.fromkeys(("captures", "commission", "commission_tax", "net"), "0") | {"currency": "'USD'"}
        poster.run(insertion("ledger_entry", LEDGER_ROW | nothing | {"organization_id": str(organization)}))
        closing = threads.submit(close, engine, MARCH)
        assert becomes(lambda: waits(engine), unless=closing.done)
        poster.commit()
        closing.result(PATIENCE)
    assert balances(engine, "month", "net", where=f"organization_id = {organization} AND currency = 'USD'") == [
        (MARCH.first_day, 0)
    ]
    assert breaches(engine) == []


@pytest.mark.every_server
@pytest.mark.parametrize("moment", ["begun", "half written", "closed"])
def test_a_posting_is_refused_at_every_moment_of_a_closing(engine: Engine, moment: str) -> None:
    organizations = prepare(engine)
    if moment == "closed":
        close(engine, MARCH)
    else:
        freeze(engine, MARCH, NOW, FIRST)
    if moment == "half written":
        BalanceWriter(engine, MARCH, 0).write(0, organizations[2])
    with two_sessions(engine) as (poster, _), pytest.raises(DBAPIError, match="month 2026-03 is closed: post the adj"):
        poster.run(POST)
    close(engine, MARCH)
    assert breaches(engine) == []


@pytest.mark.every_server
def test_a_posting_that_races_the_closing_is_refused_once_the_closing_has_begun(engine: Engine) -> None:
    prepare(engine)
    with two_sessions(engine) as (closer, poster):
        closer.run("LOCK TABLE settlement_period IN SHARE ROW EXCLUSIVE MODE")
        closer.run(CLOSING)
        posting = poster.start(POST)
        assert poster.waits()
        closer.commit()
        with pytest.raises(DBAPIError, match="month 2026-03 is closed"):
            posting.result(PATIENCE)
    close(engine, MARCH)


def test_a_balance_that_comes_after_the_end_of_the_closing_is_refused(engine: Engine) -> None:
    organization = prepare(engine)[0]
    execute(engine, CLOSING)
    ending = """
        UPDATE settlement_period SET state = 'CLOSED', closed_at = clock_timestamp(), closed_by = 'a', closed_role = 'a'
        WHERE month = '2026-03-01'
    """
    with two_sessions(engine) as (closer, writer):
        closer.run(ending)
        writing = writer.start(WRITE.format(organization=organization))
        assert writer.waits()
        closer.commit()
        with pytest.raises(DBAPIError, match="month 2026-03 is not being closed"):
            writing.result(PATIENCE)


def test_the_end_of_a_closing_waits_for_a_balance_that_is_being_written(engine: Engine) -> None:
    organization = prepare(engine)[0]
    execute(engine, CLOSING)
    with two_sessions(engine) as (writer, _), ThreadPoolExecutor(1) as threads:
        writer.run(WRITE.format(organization=organization))
        closing = threads.submit(close, engine, MARCH)
        assert becomes(lambda: waits(engine), unless=closing.done)
        assert state_of(engine, MARCH) == "CLOSING"
        writer.commit()
        closing.result(PATIENCE)


# --- Settling and closing


def test_a_pass_that_begins_while_its_month_begins_to_be_closed_is_refused_or_in_the_way(engine: Engine) -> None:
    prepare(engine)
    with two_sessions(engine) as (closer, _), ThreadPoolExecutor(1) as threads:
        closer.run("LOCK TABLE settlement_period IN SHARE ROW EXCLUSIVE MODE")
        settling = threads.submit(begin_or_join, engine, MARCH)
        assert becomes(lambda: waits(engine), unless=settling.done)
        closer.run(CLOSING)
        closer.commit()
        with pytest.raises(IncompleteSettlementError, match="2026-03 is being closed at this moment"):
            settling.result(PATIENCE)
    execute(engine, "UPDATE settlement_period SET state = 'SETTLED' WHERE month = '2026-03-01'")
    begin_or_join(engine, MARCH)
    with pytest.raises(TicketflowError, match="2026-03 is being settled by its pass 2"):
        freeze(engine, MARCH, NOW, FIRST)


def test_a_month_before_the_books_cannot_begin_while_they_begin(engine: Engine) -> None:
    settle(engine, FEBRUARY)
    with two_sessions(engine) as (settler, _), ThreadPoolExecutor(1) as threads:
        settler.run("INSERT INTO settlement_period (month) VALUES ('2026-01-01')")
        closing = threads.submit(close, engine, FEBRUARY)
        assert becomes(lambda: waits(engine), unless=closing.done)
        settler.commit()
        with pytest.raises(TicketflowError, match="2026-01 is OPEN, and months are closed in order"):
            closing.result(PATIENCE)


def test_a_pass_that_begins_while_the_month_before_ends_its_closing_takes_in_what_comes_late_for_it(
    engine: Engine,
) -> None:
    organizations = prepare(engine)
    begun: list[Any] = []
    with ThreadPoolExecutor(1) as threads:

        @event.listens_for(engine, "before_cursor_execute")
        def begin_now(connection: object, cursor: object, statement: str, *_: object) -> None:
            if "UPDATE settlement_period SET state = 'CLOSED'" in statement and not begun:
                add_movement(engine, organizations[0], 5, "2026-03-11T10:00")
                begun.append(threads.submit(begin_or_join, engine, MARCH.next()))
                assert becomes(lambda: waits(engine), unless=begun[0].done)

        closed_at = close(engine, MARCH).closed_at
        settlement, _ = begun[0].result(PATIENCE)
    assert settlement.cutoff_at > closed_at
    assert settle(engine, MARCH.next()).rows_adjusted == 1


def test_a_month_that_is_being_closed_is_settled_no_more_and_lets_no_later_one_take_its_late_movements(
    engine: Engine,
) -> None:
    organizations = prepare(engine)
    add_movement(engine, organizations[0], 5, "2026-02-11T10:00")
    execute(engine, CLOSING)
    assert settle(engine, MARCH).settlement is None
    assert settle(engine, MARCH.next()).rows_adjusted == 0
    execute(engine, "UPDATE settlement_period SET state = 'SETTLED' WHERE month = '2026-03-01'")
    assert settle(engine, MARCH).rows_adjusted == 1


# --- Parking and closing


@pytest.mark.parametrize("change", ["park", "unpark"])
def test_whoever_is_parked_or_unparked_at_the_end_is_so_before_it_or_after(engine: Engine, change: str) -> None:
    organizations = prepare(engine)
    name = reference(engine, organizations[4])
    if change == "unpark":
        park(engine, name, "asked to", "ana", FIRST)
    changes: dict[str, Callable[[], object]] = {
        "park": lambda: park(engine, name, "asked to", "ana", FIRST),
        "unpark": lambda: unpark(engine, name, "ana"),
    }
    waiting: list[bool] = []
    with ThreadPoolExecutor(1) as threads:

        @event.listens_for(engine, "before_cursor_execute")
        def change_now(connection: object, cursor: object, statement: str, *_: object) -> None:
            if "UPDATE settlement_period SET state = 'CLOSED'" in statement and not waiting:
                waiting.append(True)
                changing.append(threads.submit(changes[change]))
                assert becomes(lambda: waits(engine), unless=changing[0].done)

        changing: list[Any] = []
        close(engine, MARCH)
        changing[0].result(PATIENCE)
    event.remove(engine, "before_cursor_execute", change_now)
    rows = balances(engine, "month", where=f"organization_id = {organizations[4]} AND month = '2026-03-01'")
    assert len(rows) == (1 if change == "park" else 0)
    assert breaches(engine) == []
    settle_and_close(engine, MARCH.next())
    assert breaches(engine) == []


def test_whoever_is_unparked_after_their_chunk_is_balanced_all_the_same(engine: Engine) -> None:
    organizations = prepare(engine)
    name = reference(engine, organizations[0])
    park(engine, name, "asked to", "ana", FIRST)

    unparked: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def unpark_before_the_end(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "LOCK TABLE parked_organization" in statement and not unparked:
            unparked.append(name)
            unpark(engine, name, "ana")

    result = close(engine, MARCH, chunk_size=2)
    assert unparked == [name]
    assert (result.rows_new, result.parked) == (6, ())
    assert breaches(engine) == []


def reference(engine: Engine, organization: int) -> str:
    with engine.connect() as connection:
        return str(
            connection.execute(
                text("SELECT external_ref FROM organization WHERE id = :id"), {"id": organization}
            ).scalar_one()
        )


def test_an_empty_platform_closes_empty_books(engine: Engine) -> None:
    settle_and_close(engine, JANUARY)
    assert balances(engine) == []
