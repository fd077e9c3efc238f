"""The invariants, one by one: what must hold, and what to do where it does not. `docs/audit.md` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing import currencies, effects, ledger, payouts
from ticketflow_orch.auditing.model import Asked, Invariant, Question, Scope, sentences
from ticketflow_orch.closing import invariants as books
from ticketflow_orch.db.catalogue import foreign_triggers, grant_faults
from ticketflow_orch.db.engine import session_faults
from ticketflow_orch.db.roles import foreign_owners
from ticketflow_orch.months import Month
from ticketflow_orch.payouts import invariants as paying
from ticketflow_orch.periods.state import closed_months, open_months, touched_months
from ticketflow_orch.settlement import invariants as settling
from ticketflow_orch.settlement.anomalies import Why, read_anomalies
from ticketflow_orch.settlement.invariants import EXAMPLES, Breach, Finding, Members

_LOOK = "Ask the application's people, void what is wrong; `ticketflow anomalies accept MOVEMENT` closes what is right."
_BY_HAND = "Find out who wrote past the code; what was issued stays, so correct it by movements about the same month."


def _of_members(
    months: Callable[[Connection], tuple[Month, ...]], ask: Callable[[Connection, Month, Members], Finding]
) -> Question:
    def question(connection: Connection, asked: Asked) -> Iterator[Finding]:
        return (ask(connection, month, asked.members) for month in asked.among(months(connection)))

    return question


def _each(ask: Callable[[Connection, Month, Asked], Finding]) -> Question:
    def question(connection: Connection, asked: Asked) -> Iterator[Finding]:
        return (ask(connection, month, asked) for month in asked.among(touched_months(connection)))

    return question


def _reconciles(connection: Connection, asked: Asked) -> Iterator[Finding]:
    for month in asked.among(settling.months_recorded(connection, asked.members)):
        yield settling.dishonest_organizations(connection, month, asked.members)


def _payables(connection: Connection, asked: Asked) -> Iterator[Finding]:
    for finding in paying.not_as_payable(connection, asked.members):
        if asked.month in {None, finding.month}:
            yield finding


def _doubts(connection: Connection, asked: Asked) -> Iterator[Finding]:
    for finding in paying.in_doubt(connection, asked.members):
        if asked.month in {None, finding.month}:
            yield finding


def _order(connection: Connection, _: Asked) -> Iterator[Finding]:
    return sentences(settling.order_faults(connection))


def _guards(connection: Connection, _: Asked) -> Iterator[Finding]:
    return sentences((*settling.missing_guards(connection), *foreign_triggers(connection)))


def _no_anomaly(why: Why) -> Question:
    def question(connection: Connection, asked: Asked) -> Iterator[Finding]:
        found = read_anomalies(connection, asked.now, whys=[why], members=asked.members, limit=EXAMPLES)
        if found.count:
            yield Finding(
                None, found.count, tuple(Breach(one.organization, one.currency, one.what) for one in found.listed)
            )

    return question


def _grants(connection: Connection, _: Asked) -> Iterator[Finding]:
    return sentences((*foreign_owners(connection), *grant_faults(connection)))


def _session(connection: Connection, _: Asked) -> Iterator[Finding]:
    return sentences(session_faults(connection))


INVARIANTS = (
    Invariant(
        "guarded",
        "Every table, constraint, index, trigger and function is as the migrations made it, and switched on; no other "
        "trigger may change or drop what is written.",
        "Run `ticketflow migrate` on a copy to see what should be there, then create it again as the schema's owner; "
        "ask what was written meanwhile.",
        Scope.DATABASE,
        _guards,
    ),
    Invariant(
        "granted",
        "The roles of runs, relay and analysts hold what `ticketflow roles` grants, and nothing beyond it; what the "
        "migrations made belongs to one owner.",
        "Run `ticketflow roles` as the owner of the schema; what is left was granted to everybody, or to a role that "
        "this one is a member of: REVOKE it there.",
        Scope.DATABASE,
        _grants,
    ),
    Invariant(
        "session_as_asked",
        "A session has the settings and bounds that were asked for, its triggers fire, and what it commits is durable.",
        "Let the pooler pass `options` on, or connect without it; ALTER DATABASE … RESET or ALTER ROLE … RESET what is "
        "named.",
        Scope.DATABASE,
        _session,
    ),
    Invariant(
        "order_of_recording",
        "Ids of movements are always drawn from their own sequence, one at a time, which is ahead of all ids and "
        "cutoffs.",
        "ALTER TABLE money_movement ALTER COLUMN id SET GENERATED ALWAYS SET CACHE 1 SET INCREMENT 1 SET NO CYCLE; and "
        "setval('money_movement_id_seq', …) to the largest id or cutoff. Then run `ticketflow audit` again.",
        Scope.DATABASE,
        _order,
    ),
    Invariant(
        "windows_meet",
        "In every zone a month begins where the month before ends.",
        "Nothing is moved by itself: correct the later window as the schema's owner, then settle both months with "
        "`ticketflow settle YYYY-MM --full`.",
        Scope.DATABASE,
        ledger.windows_apart,
    ),
    Invariant(
        "movements_have_a_month",
        "Every movement lies in a month that is, or will be, settled: none before the first month.",
        "`ticketflow installation set first_month` to that of the earliest; once months are closed, void it and enter "
        "it again.",
        Scope.DATABASE,
        ledger.movements_before_the_first_month,
    ),
    Invariant(
        "passes_consistent",
        "No pass runs in a closed month, a pass that has ended left no chunk undone, and what counts as read is the "
        "cutoff of a pass that is done.",
        "Settle the first month that is not closed with `ticketflow settle YYYY-MM --full`: it reads all again. A pass "
        "in a closed month is given up as the schema's owner.",
        Scope.DATABASE,
        ledger.inconsistent_passes,
    ),
    Invariant(
        "closed_in_order",
        "Up to the last closed month every month is closed.",
        "Ask who closed it by hand: settle and close what is missing as the schema's owner.",
        Scope.DATABASE,
        ledger.closed_out_of_order,
    ),
    Invariant(
        "complete",
        "Every organization active in a month has its settlement row, the parked aside; judged until it is closed.",
        "Settle the month again: `ticketflow settle YYYY-MM`.",
        Scope.MONTH,
        _of_members(open_months, settling.organizations_without_row),
    ),
    Invariant(
        "ledger_reconciles",
        "What is posted about a month, in whatever month, is what its movements come to, each amount, organization by "
        "organization, as far as they were read; the parked aside.",
        "Settle the first month that is not closed with `ticketflow settle YYYY-MM --full`; it posts the difference. "
        "For a month before the first that was closed, void a movement of it and enter it again: all of its "
        "organization is read then.",
        Scope.MONTH,
        _reconciles,
    ),
    Invariant(
        "nothing_parked",
        "No organization is parked: it is not paid until that ends.",
        "Correct what the error names and settle again; `ticketflow unpark` ends what a person began.",
        Scope.MONTH,
        _of_members(settling.months_with_parked, settling.parked_in),
    ),
    Invariant(
        "entries_in_known_months",
        "Nothing is posted in a month whose settlement never began.",
        _BY_HAND,
        Scope.DATABASE,
        ledger.entries_in_unknown_months,
    ),
    Invariant(
        "entries_in_place",
        "Entries are about their month or an earlier one; each organization, currency and origin month has its entries "
        "numbered from 0 without a gap.",
        _BY_HAND,
        Scope.MONTH,
        _each(ledger.misplaced_entries),
    ),
    Invariant(
        "ledger_about_known_organizations",
        "Entries and balances are those of organizations and currencies that exist.",
        "Restore the organization or the currency with its id, from a backup if need be.",
        Scope.MONTH,
        _each(ledger.of_nobody),
    ),
    Invariant(
        "totals_match",
        "The totals of a month are the sums of what was posted in it, up to its last pass that is done.",
        "Delete the month's rows of settlement_total; the next pass of the month writes them again.",
        Scope.MONTH,
        _each(ledger.wrong_totals),
    ),
    Invariant(
        "balances_in_closed_months",
        "Balances stand in months that are closed or being closed, and opening balances are taken into them.",
        _BY_HAND,
        Scope.DATABASE,
        ledger.misplaced_balances,
    ),
    Invariant(
        "chain_holds",
        "Every balance of a closed month opens with what the one before left, and none is missing, the parked aside.",
        "Find the balance that was changed and restore it from a backup: later ones and payouts stand on it.",
        Scope.MONTH,
        _of_members(closed_months, books.broken_chain),
    ),
    Invariant(
        "closed_months_unchanged",
        "The ledger of a closed month is what its balances say, what they take off as settled elsewhere included, and "
        "nothing was posted into it since.",
        _BY_HAND,
        Scope.MONTH,
        _of_members(closed_months, books.changed_since_closing),
    ),
    Invariant(
        "payables_paid",
        "What a closed month owes has its payout, of that amount, three days after it was closed at the latest, from "
        "the first month on that is paid.",
        "Materialize `payouts` for the month, or look why its schedule does not.",
        Scope.MONTH,
        _payables,
    ),
    Invariant(
        "payouts_backed",
        "Every payout pays what its closed balance says, was asked for with that amount and currency, and its event is "
        "in a state that agrees.",
        "`ticketflow payouts pause`, then ask the provider what it has under the payout's reference.",
        Scope.DATABASE,
        payouts.unbacked_payouts,
    ),
    Invariant(
        "provider_references_differ",
        "No two payouts have one reference of the provider, unless all but one of them came back.",
        "Ask the provider which of them it paid; `ticketflow payouts return` gives back the others' money, `ticketflow "
        "payouts confirm REF --provider-ref` corrects a reference.",
        Scope.DATABASE,
        payouts.shared_references,
    ),
    Invariant(
        "returned_once",
        "A payout that was rejected or sent back comes back in one balance, of a later month.",
        "Compare the balance with the payouts that the month took back, then correct it by a movement.",
        Scope.DATABASE,
        payouts.returned_otherwise,
    ),
    Invariant(
        "nothing_in_doubt",
        "Of every payout it is known whether the money left.",
        "Ask the provider, then `ticketflow payouts resolve`.",
        Scope.MONTH,
        _doubts,
    ),
    Invariant(
        "mailed_once",
        "A mail of a statement has its balance, its event and the row that makes it once.",
        "Hold the event with `ticketflow outbox hold`; a missing one is not sent again, so send the statement by hand.",
        Scope.DATABASE,
        effects.inconsistent_mails,
    ),
    Invariant(
        "outbox_consistent",
        "Every event has its cause and every cause its event, and none is in the hands of a relay that is gone for an "
        "hour.",
        "Look why the relay does not run: `ticketflow outbox list --state INFLIGHT`; "
        "a missing event is sent by nobody, so inform its receiver.",
        Scope.DATABASE,
        effects.inconsistent_events,
    ),
    Invariant(
        "firings_consistent",
        "No claim outlives its lease by a day, and every window that was done was started.",
        "`ticketflow claims list --stale`, then `ticketflow claims release JOB KEY`; look why the sensor is off.",
        Scope.DATABASE,
        effects.inconsistent_claims,
    ),
    Invariant(
        "reversed_once",
        "Of no movement more came back than it took: by refunds, chargebacks, their reversals and voids together.",
        _LOOK,
        Scope.DATABASE,
        _no_anomaly(Why.BEYOND),
        warns=True,
    ),
    Invariant(
        "captured_once",
        "No reservation has two captures of which anything is left.",
        _LOOK,
        Scope.DATABASE,
        _no_anomaly(Why.TWICE),
        warns=True,
    ),
    Invariant(
        "reversed_afterwards",
        "No refund, chargeback or reversal of one is dated before what it reverses.",
        _LOOK,
        Scope.DATABASE,
        _no_anomaly(Why.EARLIER),
        warns=True,
    ),
    Invariant(
        "dated_by_now",
        "No movement is dated later than now.",
        "Void it and enter it again with the instant at which it happened.",
        Scope.DATABASE,
        _no_anomaly(Why.LATER),
        warns=True,
    ),
    Invariant(
        "payables_unpaid",
        "What closed months owe and nobody pays, because payouts are off or begin later.",
        "Nothing, if it was paid elsewhere; otherwise `ticketflow payouts from` its month, which says first what that "
        "pays.",
        Scope.LISTED,
        payouts.unpaid_payables,
    ),
    Invariant(
        "withdrawn_currencies",
        "Organizations whose currency is withdrawn, and what is carried in such a currency.",
        "`ticketflow currency replace REF --from-month YYYY-MM --to CODE --rate RATE`, or --all CODE instead of the "
        "reference.",
        Scope.LISTED,
        currencies.left_in_withdrawn,
    ),
    Invariant(
        "currencies_out_of_use",
        "Movements in a currency that was not in use then, by more than a month; reversals and MANUAL ones aside.",
        "Nothing, if it is the currency that was paid in; otherwise void it and enter it again.",
        Scope.LISTED,
        currencies.moved_out_of_use,
    ),
    Invariant(
        "rounding_residue",
        "By how much commission and tax, rounded line by line, differ from the exact ones: half a unit a line at most.",
        "Nothing: it is listed and never posted.",
        Scope.LISTED,
        _each(ledger.residue),
    ),
)
