"""Whether payouts stand on balances, were asked for, and come back once, as questions to the database."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, breaches, findings
from ticketflow_orch.closing.history import pays_from
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.settlement.invariants import Finding


def unbacked_payouts(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Payouts that are not what a closed balance pays, or whose event is missing, asks for another sum or disagrees."""
    yield from findings(connection, _UNBACKED, asked.parameters())


def shared_references(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Payouts that the provider knows by one reference: it paid one of them, whatever it said of the others."""
    yield from findings(connection, _SHARED_REFERENCES, asked.parameters())


def returned_otherwise(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Balances that took back another sum than the payouts that came back with their month."""
    yield from findings(connection, _RETURNED_OTHERWISE, asked.parameters())


def unpaid_payables(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """What closed months owe and nobody pays: payouts are off, or begin with a later month. Sums by currency."""
    rows = connection.exec_driver_sql(_UNPAID, asked.parameters()).all()
    for month in dict.fromkeys(row.month for row in rows):
        yield Finding.listed(
            Month.of_day(month),
            [
                ("", row.currency, f"{written_out(row.amount, row.exponent)} for {row.balances:,} balances: {row.why}")
                for row in rows
                if row.month == month
            ],
        )


_UNBACKED = breaches(sql(__file__, "unbacked", periods=PERIODS, agrees=sql(__file__, "agrees")))
_SHARED_REFERENCES = breaches(sql(__file__, "shared_references"))
_RETURNED_OTHERWISE = breaches(sql(__file__, "returned_otherwise"))
_UNPAID = sql(__file__, "unpaid", pays_from=pays_from())
