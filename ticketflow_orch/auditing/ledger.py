"""Whether periods, passes, windows, entries, totals and balances fit together, as questions to the database."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, breaches, findings
from ticketflow_orch.db.sql_files import Statement, sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.periods.zones import zones_in_use
from ticketflow_orch.settlement.invariants import EVERYBODY, Finding, rounding_residue
from ticketflow_orch.settlement.posting import LARGEST_ID


def entries_in_unknown_months(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Months in which something is posted although no settlement ever began."""
    yield from findings(connection, _UNKNOWN_MONTHS, asked.parameters())


def misplaced_entries(connection: Connection, month: Month, asked: Asked) -> Finding:
    """Entries of `month` about a later one, and keys whose entries are not numbered from 0 without a gap."""
    return _of_month(connection, month, asked, _MISPLACED)


def of_nobody(connection: Connection, month: Month, asked: Asked) -> Finding:
    """Entries and balances of `month` of an organization or in a currency that does not exist."""
    return _of_month(connection, month, asked, _OF_NOBODY)


def wrong_totals(connection: Connection, month: Month, asked: Asked) -> Finding:
    """Currencies whose totals of `month` are not what was posted in it up to its last finished pass, by everybody."""
    if asked.members != EVERYBODY:
        return Finding(month, 0, ())
    return _of_month(connection, month, asked, _WRONG_TOTALS)


def misplaced_balances(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Balances of months that are neither closed nor being closed, and opening balances taken into none."""
    yield from findings(connection, _MISPLACED_BALANCES, asked.parameters())


def closed_out_of_order(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Months before the last closed one that are not closed, from the first period on."""
    yield from findings(connection, _OUT_OF_ORDER, asked.parameters())


def inconsistent_passes(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Passes, and what periods say was read, that no run can have left so."""
    yield from findings(connection, _INCONSISTENT_PASSES, asked.parameters())


def windows_apart(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Zones in which a month does not begin where the one before ended: movements there lie in two months or none."""
    yield from findings(connection, _WINDOWS_APART, asked.parameters())


def movements_before_the_first_month(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Movements that no settlement will ever read: before the first month, and not taken in as late ones either."""
    zones = zones_in_use(connection)
    starts = [asked.first_month.window(name).starts_at for name in zones]
    if zones:
        bounds = {"timezones": zones, "starts": starts, "latest": max(starts)}
        yield from findings(connection, _BEFORE_THE_FIRST_MONTH, asked.parameters() | bounds)


def residue(connection: Connection, month: Month, asked: Asked) -> Finding:
    """By how much the rounded commission and tax of `month` differ from the exact ones, by currency."""
    found = rounding_residue(connection, month, asked.members)
    rows = [(currency, amount) for currency, amount in sorted(found.items()) if amount != "0"]
    return Finding.listed(month, [("", currency, f"{amount} minor units") for currency, amount in rows])


def _of_month(connection: Connection, month: Month, asked: Asked, statement: Statement) -> Finding:
    parameters = asked.parameters() | {"month": month.first_day}
    return next(findings(connection, statement, parameters), Finding(month, 0, ()))


_UNKNOWN_MONTHS = breaches(sql(__file__, "unknown_months", periods=PERIODS))
_MISPLACED = breaches(sql(__file__, "misplaced"))
_OF_NOBODY = breaches(sql(__file__, "of_nobody"))
_WRONG_TOTALS = breaches(sql(__file__, "wrong_totals"))
_MISPLACED_BALANCES = breaches(sql(__file__, "misplaced_balances", periods=PERIODS))
_OUT_OF_ORDER = breaches(sql(__file__, "out_of_order", periods=PERIODS))
_INCONSISTENT_PASSES = breaches(sql(__file__, "inconsistent_passes", periods=PERIODS))
_WINDOWS_APART = breaches(sql(__file__, "windows_apart"))
_BEFORE_THE_FIRST_MONTH = breaches(sql(__file__, "before_the_first_month", periods=PERIODS, largest_id=LARGEST_ID))
