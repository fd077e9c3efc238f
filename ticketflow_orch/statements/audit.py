"""Whether the statements of a month, as they lie in their place, are what the ledger and the balances say."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import Connection, text

from ticketflow_orch.audit import Breach, Finding
from ticketflow_orch.months import Month
from ticketflow_orch.statements.place import Place

_AMOUNTS = ("net", "due", "payable", "closing")
_EVERYBODY = "all"


def stated_months(connection: Connection) -> tuple[Month, ...]:
    """The closed months whose statements have been written, in order."""
    days = connection.execute(text("SELECT month FROM settlement_period WHERE stated_at IS NOT NULL ORDER BY month"))
    return tuple(Month.of_day(day) for day in days.scalars())


def months_to_state(connection: Connection) -> tuple[Month, ...]:
    """The closed months whose statements have not been written yet, in order."""
    days = connection.execute(
        text("SELECT month FROM settlement_period WHERE state = 'CLOSED' AND stated_at IS NULL ORDER BY month")
    )
    return tuple(Month.of_day(day) for day in days.scalars())


def statements_that_do_not_add_up(connection: Connection, month: Month, place: Place) -> Finding:
    """The currencies in which statements, ledger and balances of a stated month come to different sums."""
    from ticketflow_orch.statements.tables import totals_in
    from ticketflow_orch.statements.writing import PARQUET

    try:
        with place.reading(str(month), PARQUET) as file:
            stated = totals_in(file)
    except FileNotFoundError:
        missing = Breach(
            _EVERYBODY, "", f"{place.address(str(month), PARQUET)} is missing; materialize the month again"
        )
        return Finding(month, 1, (missing,))
    breaches = []
    nothing = dict.fromkeys(_AMOUNTS, Decimal(0))
    for row in connection.execute(_BOOKS, {"month": month.first_day, "previous": month.previous().first_day}):
        written = stated.pop(row.currency, nothing)
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
    breaches += [Breach(_EVERYBODY, currency, "has statements and no balances") for currency in sorted(stated)]
    return Finding(month, len(breaches), tuple(breaches))


# A balance takes in what was posted since the one before. Most have one in the month before; what was posted in the
# month itself is added up for all at once, and only for the others their earlier months are looked up.
_BOOKS = text("""
    WITH balance AS MATERIALIZED (
        SELECT organization_id, currency, CAST(previous_month AS date) AS previous_month, net, due, payable, closing
        FROM organization_balance WHERE month = CAST(:month AS date)
    ), entry AS (
        SELECT balance.currency, ledger_entry.net
        FROM ledger_entry JOIN balance USING (organization_id, currency)
        WHERE month = CAST(:month AS date)
        UNION ALL
        SELECT balance.currency, ledger_entry.net
        FROM balance JOIN ledger_entry USING (organization_id, currency)
        WHERE previous_month IS DISTINCT FROM CAST(:previous AS date) AND month < CAST(:month AS date)
            AND (previous_month IS NULL OR month > previous_month)
    ), posted AS (
        SELECT currency, sum(net) AS posted FROM entry GROUP BY currency
    )
    SELECT balance.currency, exponent, coalesce(posted, 0) AS posted, sum(net) AS net, sum(due) AS due,
        sum(payable) AS payable, sum(closing) AS closing
    FROM balance JOIN currency ON code = balance.currency LEFT JOIN posted ON posted.currency = balance.currency
    GROUP BY balance.currency, exponent, posted
    ORDER BY balance.currency
""")
