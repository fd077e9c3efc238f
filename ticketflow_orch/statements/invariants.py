"""Whether the statements of a month, as they lie in their place, are what the ledger and the balances say.

Which months wait for their statements is asked here, too. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PeriodState, read_periods
from ticketflow_orch.settlement.invariants import EXAMPLES, Breach, Finding
from ticketflow_orch.statements.storage import Place

_AMOUNTS = ("net", "due", "payable", "closing")
_EVERYBODY = "all"


def issued_months(connection: Connection) -> tuple[Month, ...]:
    """The closed months whose statements have been written, in order."""
    return tuple(one.month for one in read_periods(connection) if one.stated_at is not None)


def months_to_issue(connection: Connection) -> tuple[Month, ...]:
    """The closed months whose statements have not been written yet, in order."""
    return tuple(
        one.month for one in read_periods(connection) if one.state is PeriodState.CLOSED and one.stated_at is None
    )


def judged_statements(connection: Connection, place: Place) -> Iterator[Finding]:
    """What is wrong with the statements of each month that has any: the issued ones, then those that lack some."""
    for month in issued_months(connection):
        yield statements_that_do_not_add_up(connection, month, place)
    for month in months_to_issue(connection):
        yield statements_left_out(connection, month, place)


def statements_left_out(connection: Connection, month: Month, place: Place) -> Finding:
    """The balances of a month without a statement in its table; none where no table is written yet."""
    from ticketflow_orch.statements.tables import keys_in
    from ticketflow_orch.statements.writing import PARQUET

    try:
        file = place.reading(str(month), PARQUET)
    except FileNotFoundError:
        return Finding(month, 0, ())
    count, examples = 0, []
    with file:
        # Both are in one order, whatever it is called.
        try:
            written = keys_in(file)
            ahead = next(written, None)
        except ValueError as error:
            return _unusable(month, place, f"cannot be read ({error})")
        for row in connection.exec_driver_sql(
            _BALANCES, {"month": month.first_day}, execution_options={"yield_per": 10_000}
        ):
            if ahead == (row.external_ref, row.currency):
                ahead = next(written, None)
                continue
            count += 1
            if count <= EXAMPLES:
                what = f"has no statement: `ticketflow statement {row.external_ref} {month}` says why"
                examples.append(Breach(row.external_ref, row.currency, what))
    return Finding(month, count, tuple(examples))


def statements_that_do_not_add_up(connection: Connection, month: Month, place: Place) -> Finding:
    """The currencies in which statements, ledger and balances of a month come to different sums."""
    from ticketflow_orch.statements.tables import totals_in
    from ticketflow_orch.statements.writing import PARQUET

    try:
        with place.reading(str(month), PARQUET) as file:
            totals = totals_in(file, _AMOUNTS)
    except FileNotFoundError:
        return _unusable(month, place, "is missing")
    except ValueError as error:
        return _unusable(month, place, f"cannot be read ({error})")
    breaches = []
    nothing = dict.fromkeys(_AMOUNTS, Decimal(0))
    for row in connection.exec_driver_sql(_BOOKS, {"month": month.first_day, "previous": month.previous().first_day}):
        written = totals.pop(row.currency, nothing)
        balances = {name: Decimal(getattr(row, name)).scaleb(-row.exponent) for name in _AMOUNTS}
        ledger = Decimal(row.posted).scaleb(-row.exponent)
        differing = [
            f"{name} {written[name]}, in balances {balances[name]}"
            for name in _AMOUNTS
            if written[name] != balances[name]
        ]
        if balances["net"] != ledger:
            differing.append(f"net in balances {balances['net']}, in the ledger {ledger}")
        if differing:
            breaches.append(Breach(_EVERYBODY, row.currency, "; ".join(differing)))
    breaches += [Breach(_EVERYBODY, currency, "has statements and no balances") for currency in sorted(totals)]
    return Finding(month, len(breaches), tuple(breaches))


def _unusable(month: Month, place: Place, how: str) -> Finding:
    from ticketflow_orch.statements.writing import PARQUET

    what = f"{place.address(str(month), PARQUET)} {how}; materialize the month again"
    return Finding(month, 1, (Breach(_EVERYBODY, "", what),))


_BOOKS = sql(__file__, "books")

_BALANCES = """
    SELECT external_ref, balance.currency
    FROM organization_balance AS balance JOIN organization ON organization.id = organization_id
    WHERE month = %(month)s::date
    ORDER BY organization_id, balance.currency
"""
