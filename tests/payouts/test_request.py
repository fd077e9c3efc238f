"""Requesting a month's payouts: once per organization, currency and month, by whatever run, and not too early."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, event

from tests.support.payable import MARCH, close_owing, close_with, owing, pay_from, request, request_and_die, rows
from tests.support.poison import cure, poison
from tests.support.rows import add_organization
from tests.support.settled import settle
from tests.support.sql_statements import execute, objection, refusal
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts import PayoutsLeftOutError
from ticketflow_orch.payouts.invariants import not_as_payable
from ticketflow_orch.payouts.parking import park
from ticketflow_orch.payouts.request import payouts_due_months

JANUARY, FEBRUARY = Month(2026, 1), Month(2026, 2)


def payouts(engine: Engine, columns: str = "organization_id, currency, amount, state") -> list[tuple[object, ...]]:
    return rows(engine, f"SELECT {columns} FROM payout ORDER BY organization_id, currency, month")


def test_every_balance_with_something_to_pay_gets_one_payout_and_its_event(engine: Engine) -> None:
    choir, opera, band = (add_organization(engine, external_ref=name) for name in ("choir", "opera", "band"))
    close_with(engine, [(choir, "EUR", 88_000), (choir, "USD", 4_400), (opera, "EUR", -26_400), (band, "EUR", 0)])
    result = request(engine)
    assert (result.requested, result.held, result.existing) == (2, 0, 0)
    assert [(one.currency, one.payouts, one.amount, one.held) for one in result.currencies] == [
        ("EUR", 1, 88_000, None),
        ("USD", 1, 4_400, None),
    ]
    assert payouts(engine) == [(choir, "EUR", 88_000, "REQUESTED"), (choir, "USD", 4_400, "REQUESTED")]
    [(reference, payload, key)] = rows(
        engine,
        """
        SELECT CAST(public_id AS text), payload, dedupe_key FROM payout
        JOIN outbox_event ON aggregate_type = 'payout' AND aggregate_id = CAST(public_id AS text)
        WHERE currency = 'EUR' AND event_type = 'PayoutRequested'
        """,
    )
    assert payload == {
        "reference": reference,
        "organization": "choir",
        "month": "2026-03",
        "currency": "EUR",
        "amount": 88_000,
    }
    assert key == f"PayoutRequested:{reference}"


def test_what_is_owed_to_an_organization_that_is_parked_by_then_is_held_and_its_own_only(engine: Engine) -> None:
    choir, opera = add_organization(engine, external_ref="choir"), add_organization(engine, external_ref="opera")
    close_owing(engine, {choir: 100, opera: 200})
    park(engine, "opera", "a dispute", by="ann", first_month=JANUARY)
    result = request(engine)
    assert (result.requested, result.held, result.paid_at) == (1, 1, None)
    assert payouts(engine, "organization_id, state, reason") == [
        (choir, "REQUESTED", None),
        (opera, "HELD", "its organization is parked"),
    ]


@pytest.mark.every_server
def test_asking_again_or_twice_at_once_writes_nothing_twice(engine: Engine) -> None:
    close_owing(engine, {add_organization(engine): 100 + n for n in range(40)})
    with ThreadPoolExecutor(4) as threads:
        asked = list(threads.map(lambda size: request(engine, chunk_size=size), [1, 7, 40, 1000]))
    assert sum(result.requested for result in asked) == 40
    assert request(engine).existing == 40
    assert rows(engine, "SELECT count(*), sum(amount) FROM payout") == [(40, sum(100 + n for n in range(40)))]
    assert rows(engine, "SELECT count(*) FROM outbox_event") == [(40,)]


def test_what_was_written_before_a_kill_stays_and_the_rest_is_caught_up(engine: Engine) -> None:
    close_owing(engine, {add_organization(engine): 100 for _ in range(10)})
    request_and_die(engine, after_chunks=1, chunk_size=4)
    assert rows(engine, "SELECT count(*) FROM payout JOIN outbox_event ON aggregate_id = public_id::text") == [(4,)]
    assert rows(engine, "SELECT paid_at FROM settlement_period") == [(None,)]
    result = request(engine, chunk_size=4)
    assert (result.existing, result.requested) == (4, 6)
    assert result.paid_at is not None


@pytest.mark.parametrize(("size", "statements"), [(1000, 10), (10, 11), (5, 12)])
def test_a_chunk_is_one_statement_beside_its_lock(engine: Engine, size: int, statements: int) -> None:
    close_owing(engine, {add_organization(engine): 100 for _ in range(10)})
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: seen.append(arguments[2]))
    request(engine, chunk_size=size)
    locks = [statement for statement in seen if statement.startswith("LOCK TABLE parked_organization")]
    assert (len(seen) - len(locks), len(locks)) == (statements, statements - 9)


@pytest.mark.parametrize("state", [None, "SETTLED"])
def test_a_month_whose_books_are_not_closed_is_refused_by_name(engine: Engine, state: str | None) -> None:
    if state:
        add_organization(engine)
        settle(engine)
    with pytest.raises(
        TicketflowError, match=r"2026-03 (is SETTLED|was never settled), and only closed months are paid"
    ):
        request(engine)


def test_nobody_is_paid_until_somebody_names_the_first_month(engine: Engine) -> None:
    pay_from(engine, None)
    owing(engine)
    result = request(engine)
    assert result.why_nobody == ("Nobody is paid: payouts are off; `ticketflow payouts from YYYY-MM` turns them on.")
    assert (payouts(engine), result.paid_at) == ([], None)


def test_three_years_of_history_pay_nobody(engine: Engine) -> None:
    organization = add_organization(engine)
    pay_from(engine, JANUARY)
    history = list(months_between(Month(2023, 1), Month(2025, 12)))
    for month in history:
        close_owing(engine, {organization: 1_000}, month)
        assert request(engine, month).why_nobody == (
            f"Nobody is paid for {month}: payouts begin with 2026-01, and months before were settled elsewhere."
        )
    assert payouts(engine) == rows(engine, "SELECT * FROM outbox_event") == []
    close_owing(engine, {organization: 1_000}, JANUARY)
    assert request(engine, JANUARY).requested == 1


def test_a_month_counts_as_paid_when_the_last_of_its_payouts_was_requested(engine: Engine) -> None:
    owing(engine, month=JANUARY)
    request(engine, JANUARY)
    owing(engine, 1_000_000, month=FEBRUARY)
    close_owing(engine, {})
    assert due(engine) == (FEBRUARY, MARCH)
    assert request(engine, FEBRUARY).paid_at is None
    assert request(engine, MARCH).paid_at is not None
    # What February waits for is a person.
    assert due(engine) == ()


def due(engine: Engine) -> tuple[Month, ...]:
    with engine.connect() as connection:
        return payouts_due_months(connection)


def test_the_database_itself_refuses_to_pay_what_no_closed_balance_says(engine: Engine) -> None:
    organization = owing(engine, 88_000)
    statement = """
        INSERT INTO payout (organization_id, currency, month, amount, state)
        VALUES (:organization, 'EUR', CAST(:month AS date), :amount, 'REQUESTED')
    """
    given = {"organization": organization, "month": MARCH.first_day, "amount": 88_000}
    assert "its closed balance says 88000" in refusal(engine, statement, **given | {"amount": 88_001})
    assert "its closed balance says nothing" in refusal(engine, statement, **given | {"month": FEBRUARY.first_day})
    assert objection(lambda: execute(engine, statement, **given)) is None
    assert "payouts are never deleted" in refusal(engine, "DELETE FROM payout")
    assert "never changes whose it is" in refusal(engine, "UPDATE payout SET amount = 1")


@pytest.mark.every_server
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 1000])
def test_a_payout_that_cannot_be_written_stops_only_itself_and_is_told_and_tried_again(
    engine: Engine, chunk_size: int
) -> None:
    choir, opera, band = (add_organization(engine, external_ref=name) for name in ("choir", "opera", "band"))
    close_owing(engine, {choir: 100, opera: 200, band: 300})
    poison(engine, "payout", f"NEW.organization_id = {opera}")
    refusal = (
        "^2026-03 is not paid: 2 payouts requested, 1 left out; correct what is wrong, then materialize payouts for "
        "2026-03 again. The payout of opera for 2026-03 in EUR cannot be written: division by zero.$"
    )
    with pytest.raises(PayoutsLeftOutError, match=refusal):
        request(engine, chunk_size=chunk_size)
    with pytest.raises(PayoutsLeftOutError, match="0 payouts requested, 1 left out"):
        request(engine, chunk_size=chunk_size)
    assert payouts(engine, "organization_id, amount") == [(choir, 100), (band, 300)]
    alerted = "SELECT payload FROM outbox_event WHERE event_type = 'RowLeftOut'"
    [[alert]] = rows(engine, alerted)
    assert (alert["job"], alert["row"]) == ("payouts", "2026-03 opera EUR")
    with engine.connect() as connection:
        assert payouts_due_months(connection) == (MARCH,)
        [finding] = not_as_payable(connection)
    assert [(one.organization, one.what) for one in finding.examples] == [("opera", "payable 200, requested 0")]
    cure(engine, "payout")
    assert request(engine, chunk_size=chunk_size).requested == 1
    assert len(rows(engine, alerted)) == 1
    with engine.connect() as connection:
        assert payouts_due_months(connection) == ()
