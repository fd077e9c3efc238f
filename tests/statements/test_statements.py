"""What statements say: every figure from the books and the movements behind it, or no statement at all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import settle, tamper
from tests.support.sql_statements import queries
from tests.support.statements import APRIL, FEBRUARY, MARCH, close, run, state
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.statements import StatementOptions, StatementsLeftOutError, write_statement
from ticketflow_orch.statements.model import Amounts, Statement
from ticketflow_orch.statements.queries import each_with_its_own, read_movements, read_statements
from ticketflow_orch.statements.storage import Place

JANUARY = Month(2026, 1)


def statements(engine: Engine, month: Month, *organizations: int) -> list[Statement]:
    with engine.connect() as connection:
        return read_statements(connection, month, organizations)


def movements(engine: Engine, month: Month, organization: int) -> list[tuple[str, int]]:
    with engine.connect() as connection:
        return [(found.kind, found.amount) for _, found in read_movements(connection, month, [organization])]


def rates_of(statement: Statement, *, adjusted: bool = False) -> list[tuple[str, int, int, int, int]]:
    lines = statement.adjusted_lines if adjusted else statement.own_lines
    return [
        (str(line.origin), line.commission_rate_bps, line.amounts.base, line.amounts.commission, line.amounts.net)
        for line in lines
    ]


@pytest.mark.every_server
@pytest.mark.parametrize(("kept", "closings"), [(False, (0, -26_400, 0)), (True, (0, -30_000, 0))])
def test_the_golden_months_of_finance(engine: Engine, kept: bool, closings: tuple[int, ...]) -> None:
    organization = add_organization(engine)
    sale = add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    refund = {"commission_rate_bps": 0} if kept else {}
    add_movement(engine, organization, -30_000, "2026-02-10T10:00", kind="REFUND", reverses_id=sale, **refund)
    add_movement(engine, organization, 50_000, "2026-03-10T10:00")
    for month in (JANUARY, FEBRUARY, MARCH):
        close(engine, month)
    found = [statements(engine, month, organization)[0] for month in (JANUARY, FEBRUARY, MARCH)]
    assert [statement.closing for statement in found] == list(closings)
    assert [statement.payable for statement in found] == [88_000, 0, 14_000 if kept else 17_600]
    assert found[0].own == Amounts(captures=100_000, commission=10_000, commission_tax=2_000)
    assert found[1].own.refunds == -30_000
    assert found[2].opening == closings[1]


def test_lines_are_the_movements_by_rate_and_tax_rate(engine: Engine) -> None:
    organization = add_organization(engine)
    for amount, rates in ((33_333, (1000, 2000)), (5, (1000, 2000)), (10_000, (750, 2000)), (10_000, (750, 0))):
        fields = {"commission_rate_bps": rates[0], "commission_tax_bps": rates[1]}
        add_movement(engine, organization, amount, "2026-03-10T10:00", **fields)
    close(engine, MARCH)
    [statement] = statements(engine, MARCH, organization)
    assert rates_of(statement) == [
        ("2026-03", 1000, 33_338, 3_334, 29_337),
        ("2026-03", 750, 10_000, 750, 9_100),
        ("2026-03", 750, 10_000, 750, 9_250),
    ]
    assert sum(line.amounts.net for line in statement.lines) == statement.net


def test_what_came_late_for_a_stated_month_is_an_adjustment_with_its_origin(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine)
    first = add_movement(engine, organization, 10_005, "2026-01-10T10:00")
    add_movement(engine, organization, 20_000, "2026-02-10T10:00")
    close(engine, JANUARY)
    close(engine, FEBRUARY)
    # A line of 0.05 more: its commission is that of the whole line, less what was charged before.
    add_movement(engine, organization, 5, "2026-01-11T10:00")
    add_void(engine, first)
    add_movement(engine, organization, 1_000, "2026-02-11T10:00", commission_rate_bps=0)
    add_movement(engine, organization, 50_000, "2026-03-10T10:00")
    close(engine, MARCH)
    [statement] = statements(engine, MARCH, organization)
    assert rates_of(statement) == [("2026-03", 1000, 50_000, 5_000, 44_000)]
    assert rates_of(statement, adjusted=True) == [
        ("2026-01", 1000, -10_000, -1_000, -8_800),
        ("2026-02", 0, 1_000, 0, 1_000),
    ]
    assert statement.adjustments.net == -7_800
    assert movements(engine, MARCH, organization) == [
        ("CAPTURE", -10_005), ("CAPTURE", 5), ("CAPTURE", 1_000), ("CAPTURE", 50_000),
    ]  # fmt: skip
    assert statement.starts_at == instant("2026-02-28T23:00")
    assert state(engine, tmp_path, MARCH).totals["EUR"].net == 36_200
    # January's own statement is what it was.
    assert rates_of(statements(engine, JANUARY, organization)[0]) == [("2026-01", 1000, 10_005, 1_001, 8_804)]


def test_a_late_sale_and_its_void_that_one_pass_read_together_are_behind_the_statement(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 10_000, "2026-02-10T10:00")
    close(engine, FEBRUARY)
    add_void(engine, add_movement(engine, organization, 700, "2026-02-11T10:00"))
    close(engine, MARCH)
    [statement] = statements(engine, MARCH, organization)
    assert (statement.net, rates_of(statement, adjusted=True)) == (0, [])
    assert movements(engine, MARCH, organization) == [("CAPTURE", 700), ("CAPTURE", -700)]
    # They are in one statement.
    close(engine, APRIL)
    assert movements(engine, APRIL, organization) == []


def test_what_comes_late_in_two_steps_is_stated_in_two_steps(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 5, "2026-01-10T10:00")
    for month, amount in ((JANUARY, 5), (FEBRUARY, 5), (MARCH, 5)):
        settle(engine, month)
        close(engine, month)
        add_movement(engine, organization, amount, "2026-01-10T10:00")
    close(engine, APRIL)
    stated = [statements(engine, month, organization)[0] for month in (JANUARY, FEBRUARY, MARCH, APRIL)]
    # The commission of 5, 10, 15 and 20 at 10 % is 1, 1, 2 and 2; its tax nothing.
    assert [statement.net for statement in stated] == [4, 5, 4, 5]
    assert [rates_of(statement, adjusted=True)[0][2:] for statement in stated[1:]] == [(5, 0, 5), (5, 1, 4), (5, 0, 5)]


def test_an_organization_that_was_parked_catches_up_in_one_statement(engine: Engine, tmp_path: Path) -> None:
    parked, other = add_organization(engine, timezone="Asia/Tokyo"), add_organization(engine)
    for month in ("01", "02", "03"):
        add_movement(engine, parked, 10_000, f"2026-{month}-10T10:00")
        add_movement(engine, other, 10_000, f"2026-{month}-10T10:00")
    close(engine, JANUARY)
    close(engine, FEBRUARY, parked=[parked])
    add_movement(engine, parked, 100, "2026-01-10T10:00")
    add_movement(engine, parked, 100, "2026-02-10T10:00")
    close(engine, MARCH)
    assert statements(engine, FEBRUARY, parked) == []
    caught_up, ordinary = statements(engine, MARCH, parked, other)
    assert caught_up.caught_up == (FEBRUARY,)
    assert [line[:3] for line in rates_of(caught_up)] == [("2026-02", 1000, 10_100), ("2026-03", 1000, 10_000)]
    assert [line[:3] for line in rates_of(caught_up, adjusted=True)] == [("2026-01", 1000, 100)]
    assert (caught_up.starts_at, caught_up.ends_at) == (instant("2026-01-31T15:00"), instant("2026-03-31T15:00"))
    assert ordinary.caught_up == ()
    assert ordinary.starts_at == instant("2026-02-28T23:00")
    assert state(engine, tmp_path, MARCH).statements == 2


def test_an_organization_that_could_not_be_settled_catches_up_when_it_is_mended(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 10_000, "2026-02-10T10:00")
    poison = [add_movement(engine, organization, 2**62, "2026-02-11T10:00") for _ in range(3)]
    close(engine, FEBRUARY, parked=[organization])
    for movement in poison:
        add_void(engine, movement)
    add_movement(engine, organization, 10_000, "2026-03-10T10:00")
    close(engine, MARCH)
    [statement] = statements(engine, MARCH, organization)
    assert (statement.caught_up, statement.net) == ((FEBRUARY,), 17_600)


def test_a_currency_without_movements_for_a_while_has_skipped_nothing(engine: Engine) -> None:
    organization = add_organization(engine)
    for month in ("01", "03"):
        add_movement(engine, organization, 10_000, f"2026-{month}-10T10:00", currency="USD")
    for month in (JANUARY, FEBRUARY, MARCH):
        close(engine, month)
    _, dollars = statements(engine, MARCH, organization)
    assert (dollars.last_stated, dollars.caught_up) == (FEBRUARY, ())
    assert dollars.starts_at == instant("2026-02-28T23:00")


def test_what_comes_late_in_a_currency_that_is_new_is_an_adjustment_too(engine: Engine) -> None:
    organization = add_organization(engine)
    close(engine, JANUARY)
    close(engine, FEBRUARY)
    add_movement(engine, organization, 10_000, "2026-01-10T10:00", currency="USD")
    close(engine, MARCH)
    _, dollars = statements(engine, MARCH, organization)
    assert dollars.caught_up == ()
    assert rates_of(dollars, adjusted=True) == [("2026-01", 1000, 10_000, 1_000, 8_800)]


def test_a_payout_that_came_back_is_in_the_statement_that_takes_it_in(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 10_000, "2026-02-10T10:00")
    close(engine, FEBRUARY)
    with engine.begin() as connection:
        payout = """
            INSERT INTO payout (organization_id, currency, month, amount, state, answered_at, reason)
            SELECT organization_id, currency, month, payable, 'REJECTED', now(), 'AC04' FROM organization_balance
            WHERE month = :month
        """
        run(connection, payout, FEBRUARY)
    close(engine, MARCH)
    [statement] = statements(engine, MARCH, organization)
    assert [(payout.month, payout.amount, payout.reason) for payout in statement.returns] == [(FEBRUARY, 8_800, "AC04")]
    assert (statement.returned, statement.payable) == (8_800, 8_800)


@pytest.mark.parametrize(
    ("tampering", "fault"),
    [
        ("UPDATE ledger_entry SET captures = captures + 1, net = net + 1", "its lines about 2026-03 come to"),
        ("UPDATE organization_balance SET net = net + 1, due = due + 1, closing = closing + 1", "the ledger's net is"),
        ("UPDATE money_movement SET amount = amount + 10000", "its lines about 2026-03 come to"),
        (
            "UPDATE organization_balance SET returned = 5, due = due + 5, closing = closing + 5",
            "its returned payouts come to 0, the balance says 5",
        ),
    ],
)
def test_a_statement_that_does_not_add_up_is_never_printed(
    engine: Engine, tmp_path: Path, tampering: str, fault: str
) -> None:
    add_movement(engine, add_organization(engine, external_ref="teatro"), 1_000, "2026-03-10T10:00")
    close(engine, MARCH)
    tamper(engine, tampering)
    with pytest.raises(StatementsLeftOutError, match=f"teatro for 2026-03 in EUR does not add up: {fault}"):
        state(engine, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with engine.connect() as connection:
        assert run(connection, "SELECT stated_at FROM settlement_period WHERE month = :month", MARCH).scalar() is None


@pytest.mark.every_server
def test_a_chunk_costs_as_many_queries_for_many_organizations_as_for_one(engine: Engine, tmp_path: Path) -> None:
    organizations = [add_organization(engine) for _ in range(30)]
    for organization in organizations:
        add_movement(engine, organization, 1_000, "2026-02-10T10:00")
    close(engine, FEBRUARY)
    for organization in organizations:
        add_movement(engine, organization, 1_000, "2026-02-10T10:00")
        for currency in ("EUR", "JPY"):
            add_movement(engine, organization, 1_000, "2026-03-10T10:00", currency=currency)
    close(engine, MARCH)
    counts = []
    for chunk_size in (30, 10):
        with queries(engine) as sent:
            assert state(engine, tmp_path, chunk_size=chunk_size).statements == 60
        counts.append(len(sent))
    # Next organizations, balances, origins, lines, returned payouts, movements; the last look finds no organization.
    assert counts[1] - counts[0] == 2 * 6
    # And once a month: its state, its mark, and the end of what was left out.
    assert counts[0] == 6 + 4


def test_only_closed_months_are_stated(engine: Engine, tmp_path: Path) -> None:
    add_organization(engine, external_ref="teatro")
    settle(engine, MARCH)
    with pytest.raises(TicketflowError, match="2026-03 is SETTLED, and statements are of closed months"):
        state(engine, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_organization_s_statements_are_written_again_byte_by_byte(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, external_ref="teatro")
    for currency in ("EUR", "JPY"):
        add_movement(engine, organization, 1_000, "2026-03-10T10:00", currency=currency)
    close(engine, MARCH)
    state(engine, tmp_path / "all")
    options = StatementOptions(Place(tmp_path / "one"))
    written = write_statement(engine, "teatro", MARCH, options)
    assert [Path(address).name for address in written] == ["EUR.html", "JPY.html"]
    for address in written:
        path = Path(address).relative_to(tmp_path / "one")
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "all" / path).read_bytes()
    assert len(write_statement(engine, "teatro", MARCH, options, "JPY")) == 1
    with pytest.raises(TicketflowError, match="teatro has no statement of 2026-03 in KWD"):
        write_statement(engine, "teatro", MARCH, options, "KWD")
    with pytest.raises(TicketflowError, match="There is no organization 'nobody'"):
        write_statement(engine, "nobody", MARCH, options)


def test_movements_at_the_edges_of_a_month_are_in_the_one_they_belong_to(engine: Engine) -> None:
    organization = add_organization(engine, timezone="Asia/Kuwait")
    edge = instant("2026-02-28T21:00")
    for number, moment in enumerate((edge - timedelta(microseconds=1), edge, edge + timedelta(microseconds=1)), 1):
        add_movement(engine, organization, number, moment.isoformat())
    close(engine, FEBRUARY)
    close(engine, MARCH)
    assert movements(engine, FEBRUARY, organization) == [("CAPTURE", 1)]
    assert movements(engine, MARCH, organization) == [("CAPTURE", 2), ("CAPTURE", 3)]


def test_each_statement_gets_its_own_movements_and_one_without_gets_none(engine: Engine) -> None:
    organizations = [add_organization(engine) for _ in range(3)]
    for organization in (organizations[0], organizations[2]):
        add_movement(engine, organization, organization, "2026-03-10T10:00")
        add_movement(engine, organization, organization, "2026-03-10T10:00", currency="JPY")
    close(engine, MARCH)
    found: list[tuple[Any, list[int]]] = []
    with engine.connect() as connection:
        stated = read_statements(connection, MARCH, organizations)
        for statement, own in each_with_its_own(stated, read_movements(connection, MARCH, organizations)):
            found.append((statement.key, [movement.amount for movement in own]))
    first, idle, last = organizations
    assert found == [
        ((first, "EUR"), [first]), ((first, "JPY"), [first]), ((idle, "EUR"), []),
        ((last, "EUR"), [last]), ((last, "JPY"), [last]),
    ]  # fmt: skip
