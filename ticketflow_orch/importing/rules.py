"""What takes more than one cell to judge, as SQL conditions on a staged row and all that it refers to.

New rows must keep what the tables demand, so that none of their constraints and triggers is ever the first to object.
Rows that are there already must say what the database says. A row with a bad cell is judged once that is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ticketflow_orch.db.sql_files import Statement, sql
from ticketflow_orch.importing.format import (
    EVENTS,
    KINDS,
    MONEY_MOVEMENTS,
    OPENING_BALANCES,
    ORGANIZATIONS,
    RESERVATIONS,
    Kind,
)
from ticketflow_orch.importing.staging import Staging


@dataclass(frozen=True, slots=True)
class Rule:
    """`bad` and `reason` are SQL over `staged`, a linked row; what is NULL is not bad.

    What a reason says of this row alone comes after a comma or a colon: without it, reasons are counted.
    """

    column: str
    bad: str
    reason: str


def _unknown(reference: str, found: str, what: str) -> Rule:
    return Rule(
        reference,
        f"staged.{reference} IS NOT NULL AND staged.{found} IS NULL",
        f"'names no {what} of the folder or the database'",
    )


_UNKNOWN_CURRENCY = Rule(
    "currency", "staged.currency NOT IN (SELECT CAST(code AS text) FROM currency)", "'is no known currency code'"
)

# As the database has it: a row and what it reverses.
_REVERSES = "(staged.is_void OR staged.kind IN ('REFUND', 'CHARGEBACK', 'CHARGEBACK_REVERSAL'))"
_TARGET_KIND = """CASE
    WHEN staged.is_void THEN staged.kind
    WHEN staged.kind = 'CHARGEBACK_REVERSAL' THEN 'CHARGEBACK'
    ELSE 'CAPTURE'
END"""
_WHAT = "CASE WHEN staged.is_void THEN 'the void of a ' ELSE 'a ' END || staged.kind"
_POSITIVE = "((staged.kind IN ('CAPTURE', 'CHARGEBACK_REVERSAL')) <> staged.is_void)"
_KEEPS_RATES = "(staged.is_void OR staged.commission_rate_bps <> 0)"
_COMMISSION_FREE = "staged.kind IN ('FEE', 'MANUAL')"

_NEW: dict[Kind, tuple[Rule, ...]] = {
    ORGANIZATIONS: (
        _UNKNOWN_CURRENCY,
        Rule(
            "left_on",
            "staged.left_on < staged.joined_on",
            "'is before joined_on, ' || (to_jsonb(staged.joined_on) #>> '{}')",
        ),
    ),
    EVENTS: (
        _unknown("organization_ref", "organization_id", "organization"),
        Rule("ends_at", "staged.ends_at <= staged.starts_at", "'is not after starts_at'"),
    ),
    RESERVATIONS: (
        _unknown("event_ref", "event_id", "event"),
        Rule(
            "status",
            "staged.status = 'ACTIVE' AND staged.event_status <> 'OPEN'",
            "'needs an event that is OPEN, and this one is ' || staged.event_status",
        ),
        Rule(
            "confirmed_at",
            "staged.status = 'CONFIRMED' AND staged.confirmed_at IS NULL",
            "'must not be empty where the status is CONFIRMED'",
        ),
    ),
    MONEY_MOVEMENTS: (
        _unknown("organization_ref", "organization_id", "organization"),
        Rule(
            "organization_ref",
            "staged.timezone IS NOT NULL AND staged.first_instant IS NULL",
            "'has a time zone that tzdata does not know: ' || staged.timezone",
        ),
        _unknown("reservation_ref", "reservation_id", "reservation"),
        Rule(
            "reservation_ref",
            "staged.seller_ref <> staged.organization_ref",
            "'is a reservation of another organization, ' || staged.seller_ref",
        ),
        _UNKNOWN_CURRENCY,
        Rule(
            "currency",
            "staged.target_currency <> staged.currency",
            "'is not the currency of what it reverses, ' || staged.target_currency",
        ),
        Rule(
            "amount",
            f"staged.amount = 0 OR (staged.kind <> 'MANUAL' AND (staged.amount > 0) <> {_POSITIVE})",
            f"CASE WHEN staged.amount = 0 THEN 'must not be zero' WHEN {_POSITIVE} THEN 'must be positive for '"
            f" || {_WHAT} ELSE 'must be negative for ' || {_WHAT} END",
        ),
        Rule(
            "amount",
            "staged.is_void AND staged.amount <> -staged.target_amount",
            "'is not the opposite of what it voids, ' || staged.target_amount",
        ),
        Rule(
            "commission_rate_bps",
            f"staged.commission_rate_bps <> staged.target_rate_bps AND {_KEEPS_RATES}",
            "'is not the rate of what it reverses, ' || staged.target_rate_bps",
        ),
        Rule(
            "commission_tax_bps",
            f"staged.commission_tax_bps <> staged.target_tax_bps AND {_KEEPS_RATES}",
            "'is not the tax rate of what it reverses, ' || staged.target_tax_bps",
        ),
        Rule(
            "commission_rate_bps",
            f"{_COMMISSION_FREE} AND staged.commission_rate_bps <> 0",
            "'must be 0 for a ' || staged.kind",
        ),
        Rule(
            "commission_tax_bps",
            f"{_COMMISSION_FREE} AND staged.commission_tax_bps <> 0",
            "'must be 0 for a ' || staged.kind",
        ),
        Rule(
            "reverses_ref",
            f"(staged.reverses_ref IS NULL) = {_REVERSES}",
            f"CASE WHEN {_REVERSES} THEN 'must name what is reversed by ' ELSE 'must be empty for ' END || {_WHAT}",
        ),
        Rule(
            "reverses_ref",
            f"{_REVERSES} AND staged.reverses_ref IS NOT NULL AND staged.reverses_id IS NULL",
            "'names no movement of the folder or the database'",
        ),
        Rule(
            "reverses_ref",
            f"{_REVERSES} AND (staged.target_is_void OR staged.target_kind <> {_TARGET_KIND})",
            f"'must name a ' || {_TARGET_KIND} || ' that is no void, and this is '"
            " || CASE WHEN staged.target_is_void THEN 'the void of a ' ELSE 'a ' END || staged.target_kind",
        ),
        Rule("reverses_ref", "staged.voided_by IS NOT NULL", "'is voided already, by ' || staged.voided_by"),
        Rule(
            "reverses_ref",
            "staged.target_organization_ref <> staged.organization_ref",
            "'is a movement of another organization, ' || staged.target_organization_ref",
        ),
        Rule(
            "occurred_at",
            "staged.occurred_at < staged.first_instant",
            "'is before the first month that is settled here, which begins at '"
            " || (to_jsonb(staged.first_instant) #>> '{}')",
        ),
        Rule(
            "occurred_at",
            "staged.is_void AND staged.occurred_at <> staged.target_occurred_at",
            "'is not the instant of what it voids, ' || (to_jsonb(staged.target_occurred_at) #>> '{}')",
        ),
        Rule(
            "reason",
            f"{_COMMISSION_FREE} AND staged.reason IS NULL",
            "'must not be empty for a ' || staged.kind",
        ),
    ),
    OPENING_BALANCES: (
        _unknown("organization_ref", "organization_id", "organization"),
        Rule(
            "organization_ref",
            "staged.balanced_since IS NOT NULL",
            "'has balances in this currency since ' || to_char(staged.balanced_since, 'YYYY-MM')"
            " || ', which say what it is owed; correct them by a MANUAL movement'",
        ),
        _UNKNOWN_CURRENCY,
        Rule("amount", "staged.amount = 0", "'must not be zero'"),
    ),
}

# How the present row holds a column that it does not hold under the same name.
_STORED = {
    "organization_ref": "(SELECT external_ref FROM organization WHERE id = present.organization_id)",
    "event_ref": "(SELECT external_ref FROM event WHERE id = present.event_id)",
    "reservation_ref": "(SELECT public_ref FROM reservation WHERE id = present.reservation_id)",
    "payouts_from": "to_char(present.payouts_from, 'YYYY-MM')",
    "reverses_ref": "(SELECT external_ref FROM money_movement AS target WHERE target.id = present.reverses_id)",
}
# Where the platform has moved on since, the row is still the one that was imported.
_MOVED_ON = {
    (ORGANIZATIONS, "payouts_from"): (
        "staged.payouts_from IS NULL OR EXISTS (SELECT FROM organization_change AS change"
        " WHERE change.organization_id = present.id AND change.name = 'payouts_from'"
        " AND change.before = staged.payouts_from || '-01')"
    ),
    (ORGANIZATIONS, "currency"): (
        "staged.currency IN (SELECT CAST(decided.currency AS text) FROM organization_currency AS decided"
        " WHERE decided.organization_id = present.id)"
    ),
    (EVENTS, "status"): (
        "staged.status = 'DRAFT' OR (staged.status = 'OPEN' AND present.status IN ('CLOSED', 'CANCELLED'))"
    ),
    (EVENTS, "venue"): "staged.venue IS NULL",
    (RESERVATIONS, "status"): (
        "staged.status = 'ACTIVE' OR (staged.status = 'CONFIRMED' AND present.status = 'CANCELLED')"
    ),
    (RESERVATIONS, "confirmed_at"): "staged.status = 'ACTIVE' AND staged.confirmed_at IS NULL",
    (RESERVATIONS, "payment_started_at"): "staged.status = 'ACTIVE' AND staged.payment_started_at IS NULL",
}


def _same(kind: Kind) -> tuple[Rule, ...]:
    rules = []
    for column in (column for column in kind.columns if column.name not in kind.key):
        stored = _STORED.get(column.name, f"present.{column.name}")
        differs = f"staged.{column.name} IS DISTINCT FROM {stored}"
        excuse = _MOVED_ON.get((kind, column.name))
        rules.append(
            Rule(
                column.name,
                differs if excuse is None else f"{differs} AND NOT ({excuse})",
                "'differs from the row that is there already, which holds '"
                f" || coalesce(quote_literal(to_jsonb({stored}) #>> '{{}}'), 'nothing')",
            )
        )
    return tuple(rules)


_SAME = {kind: _same(kind) for kind in KINDS}


def judge(staging: Staging) -> None:
    """Note everything that is wrong across the staged rows."""
    for kind in KINDS:
        if staging.rows[kind]:
            for query in _BROKEN[kind]:
                staging.note_rows(kind, query)
            staging.report(f"checking {kind.name}", staging.rows[kind])


def _query(kind: Kind, rules: tuple[Rule, ...], rows: str, which: str) -> Statement:
    # Nothing but our own words goes into the statement.
    broken = " OR ".join(f"({rule.bad})" for rule in rules)
    each = ",\n".join(
        f"({rule.bad}, {kind.position(rule.column)}, '{rule.column}',"
        f" to_jsonb(staged.{rule.column}) #>> '{{}}', {rule.reason})"
        for rule in rules
    )
    return sql(__file__, "broken", rows=rows, which=which, broken=broken, each=each)


def _of_new_rows(kind: Kind) -> Statement:
    return _query(kind, _NEW[kind], f"linked_{kind.table} AS staged", "staged.present_id IS NULL")


def _of_rows_that_are_there(kind: Kind) -> Statement:
    present = f"{kind.table} AS present ON present.id = staged.present_id"
    return _query(kind, _SAME[kind], f"linked_{kind.table} AS staged JOIN {present}", "staged.present_id IS NOT NULL")


_BROKEN = {kind: (_of_new_rows(kind), _of_rows_that_are_there(kind)) for kind in KINDS}
