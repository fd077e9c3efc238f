"""The audit, invariant by invariant: nothing that is wrong about money or its effects leaves it green."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.conftest import fresh_database
from tests.support.audited import FIRST, World, audit, broken, listed, said_of, whole_chain
from tests.support.books import APRIL, FEBRUARY, JANUARY
from tests.support.payable import close_owing, pay_from, requested_payout, rows
from tests.support.rows import add_movement, add_organization
from tests.support.settled import NOW, settle, tamper
from tests.support.sql_statements import execute
from ticketflow_orch.auditing import INVARIANTS, Scope, organization_members, snapshot
from ticketflow_orch.closing import close_month
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.settlement import invariants as questions

WORLD = World(1, 2, 3)


@pytest.fixture(scope="module")
def whole(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a database that has been through the whole chain, to be copied."""
    with fresh_database(server) as url:
        engine = connect_engine(url, "pytest whole chain", connections=20)
        try:
            assert whole_chain(engine, tmp_path_factory.mktemp("statements")) == WORLD
        finally:
            engine.dispose()
        yield str(url.database)


@pytest.fixture
def chain(server: EmbeddedServer, whole: str) -> Iterator[Engine]:
    """A copy of that database for one test."""
    with fresh_database(server, whole) as url:
        engine = connect_engine(url, "pytest", connections=5)
        yield engine
        engine.dispose()


@pytest.mark.every_server
def test_nothing_is_wrong_after_late_data_parking_given_up_passes_refunds_and_returns(chain: Engine) -> None:
    assert broken(chain) == {}
    # What the world holds, so that all this is no empty praise.
    assert rows(chain, "SELECT DISTINCT state FROM payout ORDER BY 1") == [
        ("CONFIRMED",),
        ("REQUESTED",),
        ("RETURNED",),
    ]
    ahead = """
        SELECT count(*) FROM settlement_pass
        WHERE state = 'GIVEN_UP' AND cutoff > (SELECT max(read_to) FROM settlement_period)
    """
    assert rows(chain, ahead) == [(1,)]
    late = """
        SELECT DISTINCT to_char(month, 'MM') || ' about ' || to_char(origin_month, 'MM') FROM ledger_entry
        WHERE origin_month <> month ORDER BY 1
    """
    assert rows(chain, late) == [("02 about 01",), ("02 about 12",), ("04 about 03",)]


# What is written past all guards, the invariant that it breaks, and what is said of it.
BREACHES = {
    "a closed month's entry": (
        "UPDATE ledger_entry SET captures = captures + 1, net = net + 1"
        " WHERE organization_id = 1 AND month = '2026-01-01'",
        "ledger_reconciles", "2026-01 seller EUR posted 88002, recomputed 88001",
    ),
    "two amounts of an entry that cancel out": (
        "UPDATE ledger_entry SET captures = captures + 5, refunds = refunds - 5"
        " WHERE organization_id = 1 AND month = '2026-02-01'",
        "ledger_reconciles", "2026-02 seller EUR recomputed minus posted: captures -5, refunds 5",
    ),
    "an entry about a month before the first": (
        "DELETE FROM ledger_entry WHERE origin_month = '2025-12-01'",
        "ledger_reconciles", "2025-12 late JPY posted 0, recomputed 2640",
    ),
    "an entry of a pass that is ahead": (
        "UPDATE ledger_entry SET net = net - 1, commission = commission + 1"
        " WHERE organization_id = 1 AND month = '2026-04-01' AND sequence = 1",
        "ledger_reconciles", "2026-04 seller EUR posted 7039, recomputed 7040",
    ),
    "a movement that a pass has read": (
        "UPDATE money_movement SET amount = amount + 10000 WHERE organization_id = 1 AND occurred_at < '2026-02-01'"
        " AND kind = 'CAPTURE'",
        "ledger_reconciles", "2026-01 seller EUR posted 88001, recomputed 96801",
    ),
    "movements that count as read and were not": (
        "INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,"
        " commission_tax_bps, occurred_at, id) OVERRIDING SYSTEM VALUE"
        " SELECT 'slipped in', 1, 'CAPTURE', 'EUR', 100, 0, 0, '2026-01-20Z', cutoff FROM settlement_pass"
        " WHERE month = '2026-01-01' AND pass = 2",
        "ledger_reconciles", "2026-01 seller EUR posted 88001, recomputed 88101",
    ),
    "a month that is settled and lacks a row": (
        "DELETE FROM ledger_entry WHERE organization_id = 2 AND currency = 'EUR' AND month = '2026-04-01'",
        "complete", "2026-04 late EUR has no settlement row",
    ),
    "an organization that is gone": (
        "DELETE FROM organization WHERE id = 3",
        "ledger_about_known_organizations", "2026-01 id 3 EUR entries of an organization that does not exist",
    ),
    "a total": (
        "UPDATE settlement_total SET captures = captures + 1 WHERE month = '2026-01-01' AND currency = 'EUR'",
        "totals_match", "2026-01 EUR the total is 88001 net of 3 organizations, the entries come to 88001 of 3",
    ),
    "a total that is missing": (
        "DELETE FROM settlement_total WHERE month = '2026-02-01' AND currency = 'JPY'",
        "totals_match",
        "2026-02 JPY the total is missing net of 0 organizations, the entries come to 6160 of 0",
    ),
    "a window": (
        "UPDATE settlement_window SET ends_at = ends_at - interval '1 hour'"
        " WHERE month = '2026-01-01' AND timezone = 'Asia/Tokyo'",
        "windows_meet",
        "2026-02 Asia/Tokyo begins at 2026-01-31 15:00, and the month before ends at 2026-01-31 14:00 UTC",
    ),
    "a gap in the numbers of entries": (
        "UPDATE ledger_entry SET sequence = 2 WHERE month = '2026-04-01' AND organization_id = 1 AND sequence = 1",
        "entries_in_place", "2026-04 seller EUR 2 entries about 2026-04 are numbered from 0 to 2",
    ),
    "an entry in a month that nobody has begun": (
        "UPDATE ledger_entry SET month = '2026-09-01' WHERE month = '2026-02-01' AND origin_month = '2026-01-01'",
        "entries_in_known_months", "2026-09 holds entries, and no settlement of it ever began",
    ),
    "an opening": (
        "UPDATE organization_balance SET opening = opening + 1, due = due + 1, payable = payable + sign(payable),"
        " closing = CASE payable WHEN 0 THEN closing + 1 ELSE closing END"
        " WHERE month = '2026-02-01' AND organization_id = 1",
        "chain_holds", "2026-02 seller EUR opens with 1 instead of 0",
    ),
    "a balance that is missing": (
        "DELETE FROM organization_balance WHERE month = '2026-03-01' AND organization_id = 3",
        "chain_holds", "2026-03 poisoned EUR has entries and no balance",
    ),
    "the net of a balance": (
        "UPDATE organization_balance SET net = net - 1, returned = returned + 1"
        " WHERE month = '2026-02-01' AND organization_id = 1",
        "closed_months_unchanged", "2026-02 seller EUR balanced -18101, posted -18100",
    ),
    "a balance of a month that is not closed": (
        "INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due, payable,"
        " closing) VALUES (1, 'EUR', '2026-04-01', 0, 0, 0, 0, 0, 0)",
        "balances_in_closed_months", "2026-04 seller EUR has a balance of 0, and the month is SETTLED",
    ),
    "an opening balance that was taken into no month": (
        "INSERT INTO opening_balance (organization_id, currency, amount, balance_month)"
        " VALUES (1, 'USD', 500, '2026-02-01')",
        "balances_in_closed_months",
        "2026-02 seller USD has an opening balance of 500 that counts as taken in, and no balance",
    ),
    "a month that is open again": (
        "UPDATE settlement_period SET state = 'SETTLED', closed_at = NULL, closed_by = NULL, closed_role = NULL,"
        " paid_at = NULL, stated_at = NULL WHERE month = '2026-02-01'",
        "closed_in_order", "2026-02 is SETTLED, and 2026-03 is closed",
    ),
    "a pass of a closed month": (
        "UPDATE settlement_pass SET state = 'RUNNING', finished_at = NULL WHERE month = '2026-01-01' AND pass = 1",
        "passes_consistent", "2026-01 pass 1 is RUNNING in a month that is CLOSED",
    ),
    "a chunk that nobody has worked on": (
        "UPDATE settlement_chunk SET state = 'PLANNED', finished_at = NULL WHERE month = '2026-01-01' AND pass = 1",
        "passes_consistent", "2026-01 pass 1 is DONE with 1 chunks that nobody has worked on",
    ),
    "what was read, forgotten": (
        "UPDATE settlement_period SET read_to = NULL WHERE month = '2026-04-01'",
        "passes_consistent", "2026-04 is SETTLED and says nothing of what was read of it",
    ),
    "what was read, made up": (
        "UPDATE settlement_period SET read_to = read_to - 1 WHERE month = '2026-04-01'",
        "passes_consistent", "which is the cutoff of no pass that is done",
    ),
    "a payable": (
        "DELETE FROM payout WHERE month = '2026-03-01' AND organization_id = 1",
        "payables_paid", "2026-03 seller EUR payable 69901, requested 0",
    ),
    "the amount of a payout": (
        "UPDATE payout SET amount = amount + 1 WHERE month = '2026-03-01' AND organization_id = 1",
        "payouts_backed", "of 69902 is REQUESTED, and the balance pays 69901",
    ),
    "the state of a payout": (
        "UPDATE outbox_event SET state = 'DEAD', available_at = NULL FROM payout"
        " WHERE dedupe_key = 'PayoutRequested:' || public_id AND month = '2026-03-01' AND organization_id = 1",
        "payouts_backed", "of 69901 is REQUESTED, and its event is DEAD",
    ),
    "the event of a payout": (
        "DELETE FROM outbox_event USING payout"
        " WHERE dedupe_key = 'PayoutRequested:' || public_id AND month = '2026-03-01' AND organization_id = 1",
        "payouts_backed", "of 69901 is REQUESTED, and its event is missing",
    ),
    "what a payout asks for": (
        "UPDATE outbox_event SET payload = payload || '{\"amount\": 7}' FROM payout"
        " WHERE dedupe_key = 'PayoutRequested:' || public_id AND month = '2026-03-01' AND organization_id = 1",
        "payouts_backed", "of 69901 is REQUESTED, and its event asks for 7 EUR",
    ),
    "one reference for two payouts": (
        "UPDATE payout SET provider_ref = 'po_1'",
        "provider_references_differ", "that the provider calls po_1",
    ),
    "what came back": (
        "UPDATE payout SET returned_month = NULL WHERE returned_month IS NOT NULL",
        "returned_once", "2026-03 seller EUR took back 88001, and payouts of 0 came back",
    ),
    "a mail": (
        "DELETE FROM statement_mail",
        "mailed_once", "mails a statement and is written down nowhere, so another may follow",
    ),
    "the event of a mail": (
        "DELETE FROM outbox_event WHERE event_type = 'StatementReady'",
        "mailed_once", "2026-01 seller EUR is to be mailed, and the event is missing",
    ),
    "the balance of a mail": (
        "DELETE FROM organization_balance WHERE month = '2026-01-01' AND organization_id = 1",
        "mailed_once", "2026-01 seller EUR was mailed a statement, and has no balance",
    ),
    "a relay that is gone": (
        "UPDATE outbox_event SET state = 'INFLIGHT', owner = 'relay 1', lease_until = now() - interval '61 minutes'"
        " WHERE event_type = 'StatementReady'",
        "outbox_consistent", "is INFLIGHT, and the lease of relay 1 ended at",
    ),
    "an event for a payout that is not there": (
        "UPDATE outbox_event SET aggregate_id = 'nobody' WHERE event_type = 'PayoutRequested' AND state = 'DELIVERED'",
        "outbox_consistent", "asks for a payout that does not exist",
    ),
    "the event of a settled month": (
        "DELETE FROM outbox_event WHERE dedupe_key = 'MonthSettled:2026-02'",
        "outbox_consistent", "2026-02 is settled, and its event MonthSettled is missing",
    ),
    "the event of a reminder": (
        "INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)"
        " VALUES (1, '24h', '2026-05-01', 'QUEUED', gen_random_uuid())",
        "outbox_consistent", "is QUEUED, and its event is missing",
    ),
    "a claim": (
        "INSERT INTO job_execution (job, idempotency_key, state, owner, lease_until)"
        " VALUES ('close_events', '2026-05-01T02:30:00+00:00', 'PROCESSING', 'host/1', now() - interval '25 hours')",
        "firings_consistent",
        "close_events 2026-05-01T02:30:00+00:00 is PROCESSING, and the lease of host/1 ended at",
    ),
    "a window that nobody started": (
        "INSERT INTO job_execution (job, idempotency_key, state, owner, finished_at)"
        " VALUES ('close_events', '2026-05-01T02:30:00+00:00 by hand run', 'COMPLETED', 'host/1', now())",
        "firings_consistent", "close_events 2026-05-01T02:30:00+00:00 by hand run is COMPLETED, and nothing says that",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "name", "said"), BREACHES.values(), ids=BREACHES)
def test_a_breach_is_named_with_what_is_wrong(chain: Engine, damage: str, name: str, said: str) -> None:
    tamper(chain, damage)
    found = broken(chain)
    assert name in found
    assert any(said in line for line in found[name]), found[name]


@pytest.mark.every_server
def test_movements_that_no_settlement_will_read_are_named(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="early")
    add_movement(engine, organization, 700, "2025-12-31T22:59", external_ref="too early")
    add_movement(engine, organization, 700, "2025-12-31T23:00", external_ref="in time")
    add_movement(engine, organization, 700, "2999-01-01T00:00", external_ref="far off")
    said = ["early EUR too early of 2025-12-31 22:59 UTC over 700"]
    assert broken(engine) == {"movements_have_a_month": said}
    assert broken(engine, first_month=Month(2025, 12)) == {}
    settle(engine, JANUARY)
    close_month(engine, JANUARY, now=NOW, first_month=FIRST, closed_by="test", run_id="run")
    # Read past, and never posted.
    found = broken(engine)
    assert found == {
        "movements_have_a_month": said,
        "ledger_reconciles": ["2025-12 early EUR posted 0, recomputed 616"],
    }
    # What comes after the closing is late like any other, and is taken in.
    other = add_organization(engine, external_ref="other")
    add_movement(engine, other, 100, "2025-12-10T10:00")
    settle(engine, FEBRUARY)
    assert broken(engine)["ledger_reconciles"] == found["ledger_reconciles"]


def test_an_organization_that_is_parked_is_named_and_nothing_else_is_wrong(engine: Engine) -> None:
    poisoned = add_organization(engine, external_ref="poisoned")
    for _ in range(3):
        add_movement(engine, poisoned, 2**62, "2026-03-10T10:00")
    settle(engine)
    found = broken(engine)
    assert list(found) == ["nothing_parked"]
    assert "2026-03 poisoned EUR" in found["nothing_parked"][0]


def test_a_payout_in_doubt_is_named(chain: Engine) -> None:
    execute(
        chain,
        "UPDATE payout SET state = 'IN_DOUBT', reason = 'no answer' WHERE state = 'REQUESTED' AND currency = 'EUR'",
    )
    found = broken(chain)
    assert list(found) == ["nothing_in_doubt"]
    assert "of 69901: no answer" in found["nothing_in_doubt"][0]


def test_what_is_owed_is_given_three_days_and_listed_while_nobody_is_to_be_paid(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="owed")
    close_owing(engine, {organization: 88_000})
    pay_from(engine, JANUARY)
    assert "payables_paid" not in broken(engine)
    assert listed(engine)["payables_unpaid"] == []
    tamper(engine, "UPDATE settlement_period SET closed_at = closed_at - interval '73 hours'")
    assert broken(engine)["payables_paid"] == ["2026-03 owed EUR payable 88000, requested 0"]
    for payouts_from, why in ((None, "payouts are off"), (APRIL, "payouts begin with 2026-04")):
        pay_from(engine, payouts_from)
        assert "payables_paid" not in broken(engine)
        assert listed(engine)["payables_unpaid"] == [f"2026-03 EUR 880.00 for 1 balances: {why}"]


def test_a_month_that_says_it_is_paid_and_lacks_a_payout_is_not_given_three_days(chain: Engine) -> None:
    tamper(chain, "DELETE FROM payout WHERE month = '2026-03-01' AND organization_id = 1")
    # The event that asked for it is there.
    assert list(broken(chain)) == ["payables_paid", "outbox_consistent"]


def test_a_payout_that_waits_for_a_person_or_whose_event_is_long_gone_is_no_breach(engine: Engine) -> None:
    reference = requested_payout(engine)
    tamper(engine, "DELETE FROM outbox_event")
    assert "payouts_backed" in broken(engine)
    tamper(engine, "UPDATE payout SET created_at = created_at - interval '91 days'")
    assert "payouts_backed" not in broken(engine)
    tamper(engine, f"UPDATE payout SET state = 'HELD', created_at = now() WHERE public_id = '{reference}'")
    assert "payouts_backed" not in broken(engine)


def test_the_rounding_residue_is_listed_by_month_and_currency(chain: Engine) -> None:
    # 10 % of 1,000.01 is rounded down by a tenth of a cent.
    assert listed(chain)["rounding_residue"] == ["2026-01 EUR -0.1 minor units"]


def test_a_month_and_an_organization_are_asked_about_alone(chain: Engine) -> None:
    for organization in (1, 2):
        tamper(
            chain,
            f"UPDATE ledger_entry SET captures = captures + 1, net = net + 1 WHERE organization_id = {organization}"
            " AND month = origin_month AND sequence = 0",
        )
    with snapshot(chain) as connection:
        seller = organization_members(connection, "seller")
        with pytest.raises(TicketflowError, match="There is no organization 'nobody'"):
            organization_members(connection, "nobody")
    everything = audit(chain)["ledger_reconciles"]
    assert {line[:7] for line in said_of(everything)} == {"2026-01", "2026-02", "2026-03", "2026-04"}
    one_month = audit(chain, month=FEBRUARY)["ledger_reconciles"]
    assert [finding.month for finding in one_month.findings] == [FEBRUARY]
    assert {line.split()[1] for line in said_of(one_month)} == {"seller", "late"}
    both = broken(chain, month=FEBRUARY, members=seller)
    assert [line.split()[:3] for line in both["ledger_reconciles"]] == [["2026-02", "seller", "EUR"]]
    assert broken(chain, month=FEBRUARY, members=organization_members_of(chain, "poisoned")) == {}


def organization_members_of(engine: Engine, external_ref: str) -> questions.Members:
    with engine.connect() as connection:
        return organization_members(connection, external_ref)


def test_a_question_without_an_answer_is_a_breach_and_the_others_are_asked(chain: Engine) -> None:
    # More than any column holds, in what counts as read.
    tamper(chain, "UPDATE money_movement SET amount = 9000000000000000000 WHERE organization_id = 2")
    verdicts = audit(chain)
    assert "out of range" in str(verdicts["ledger_reconciles"].no_answer)
    assert len(verdicts) == len(INVARIANTS)
    assert not verdicts["chain_holds"].is_broken


def test_a_full_settlement_of_the_first_open_month_fixes_what_does_not_reconcile(chain: Engine) -> None:
    tamper(chain, "DELETE FROM ledger_entry WHERE month = '2026-02-01' AND origin_month = '2026-01-01'")
    assert "ledger_reconciles" in broken(chain)
    settle(chain, APRIL, full=True)
    # The closed month's own balances still say what they said.
    assert set(broken(chain)) == {"closed_months_unchanged", "nothing_parked", "totals_match"}


def test_every_invariant_says_what_holds_and_what_to_do() -> None:
    assert len({one.name for one in INVARIANTS}) == len(INVARIANTS)
    for one in INVARIANTS:
        assert one.holds.endswith(".")
        assert one.fix.endswith(".")
    assert {one.name for one in INVARIANTS if one.scope == Scope.LISTED} == {
        "payables_unpaid", "withdrawn_currencies", "currencies_out_of_use", "rounding_residue",
    }  # fmt: skip
