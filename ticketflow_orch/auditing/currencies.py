"""What is left in currencies that were withdrawn, and what moved in one that was not in use, as questions."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, breaches, findings
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.settlement.currencies import STILL_IN_WITHDRAWN, out_of_use
from ticketflow_orch.settlement.invariants import Finding


def left_in_withdrawn(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Organizations whose currency is withdrawn, and what the last closed month carries in such currencies."""
    yield from findings(connection, _LEFT, asked.parameters())


def moved_out_of_use(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Movements in a currency that was not in use then by more than a month; what reverses or corrects aside."""
    yield from findings(connection, _MOVED, asked.parameters())


_LEFT = breaches(sql(__file__, "left", periods=PERIODS, still_in_withdrawn=STILL_IN_WITHDRAWN))
_MOVED = breaches(sql(__file__, "moved", out_of_use=out_of_use("occurred_at")))
