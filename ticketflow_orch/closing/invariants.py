"""What must hold for closed books, and before a month is closed, as questions to the database: read-only."""

from __future__ import annotations

from sqlalchemy import Connection

from ticketflow_orch.closing.history import moved
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import CLOSING_MONTH, LEDGER_MONTHS, last_closed
from ticketflow_orch.settlement.invariants import (
    EVERYBODY,
    EXAMPLES,
    Breach,
    Finding,
    Members,
    dishonest_organizations,
    missing_guards,
    order_faults,
    organizations_without_row,
)

_NAMED = 5


def missing_balances(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """What `month` must balance and does not: keys of its ledger, amounts carried, payouts that came back.

    Organizations that were parked when it was closed, or are now if it is being closed, are left aside.
    """
    return _ask(connection, month, members, _MISSING)


def broken_chain(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Balances of `month` that do not begin where the ones before ended, and those that are missing."""
    broken = _ask(connection, month, members, _BROKEN)
    missing = missing_balances(connection, month, members)
    return Finding(month, broken.count + missing.count, (*broken.examples, *missing.examples)[:EXAMPLES])


def changed_since_closing(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Balances of `month` that are not what was posted since the balances before, or take off other history."""
    return _ask(connection, month, members, _CHANGED)


def has_balances(connection: Connection, month: Month) -> bool:
    """Whether a balance of `month` is written: it was found fit then, and its closing can only be finished."""
    return bool(
        connection.exec_driver_sql(
            "SELECT EXISTS (SELECT FROM organization_balance WHERE month = %(month)s)", {"month": month.first_day}
        ).scalar_one()
    )


def why_unfit(connection: Connection, month: Month, *, frozen: bool) -> str | None:
    """Why the month may not be closed as it is, in one sentence that names the check and the organizations.

    Once a `frozen` month has balances, who was entered since has no row, as in a month that is closed.
    """
    guards = (*missing_guards(connection), *order_faults(connection))
    if guards:
        return f"{month} is not closed, because the database does not guard the books: {'; '.join(guards)}."
    resumed = frozen and has_balances(connection, month)
    findings = {} if resumed else {"complete": organizations_without_row(connection, month)}
    findings["honest"] = dishonest_organizations(connection, month)
    before = last_closed(connection)
    if before is not None:
        findings["chain_holds"] = broken_chain(connection, before)
        findings["closed_months_unchanged"] = changed_since_closing(connection, before)
    return next((_red(month, name, finding) for name, finding in findings.items() if finding.count), None)


def _red(month: Month, check: str, finding: Finding) -> str:
    named = finding.examples[:_NAMED]
    examples = "; ".join(f"{one.organization} {one.currency} {one.what}" for one in named)
    more = f" and {finding.count - len(named)} more" if finding.count > len(named) else ""
    return f"{month} is not closed, because the check {check} is red for {finding.month}: {examples}{more}."


def _ask(connection: Connection, month: Month, members: Members, question: str) -> Finding:
    parameters = {"month": month.first_day, "examples": EXAMPLES} | members.parameters()
    rows = connection.exec_driver_sql(question, parameters).all()
    breaches = tuple(Breach(row.external_ref, row.currency, row.what) for row in rows)
    return Finding(month, rows[0].breaches if rows else 0, breaches)


_EXAMPLES = sql(__file__, "examples")

_MISSING = sql(__file__, "missing", closing_month=CLOSING_MONTH, examples=_EXAMPLES)

_BROKEN = sql(__file__, "broken", examples=_EXAMPLES)

_CHANGED = sql(
    __file__,
    "changed",
    ledger_months=LEDGER_MONTHS,
    moved=moved("posted", "last.last_month::date"),
    examples=_EXAMPLES,
)
