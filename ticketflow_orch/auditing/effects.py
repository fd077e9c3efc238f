"""Whether events, payouts, reminders, mails, claims and firings agree, as questions to the database.

The retention deletes what is over: a record of which the event or the firing is gone is wrong only if it is younger
than that.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, breaches, findings
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.settlement.invariants import EVERYBODY, Finding


def inconsistent_events(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Events in the hands of a relay that is long gone, events without their cause, and causes without their event."""
    if asked.members == EVERYBODY:
        yield from findings(connection, _EVENTS, asked.parameters())


def inconsistent_mails(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Mails of statements without a balance or an event, and events of mails that nobody wrote down."""
    yield from findings(connection, _MAILS, asked.parameters())


def inconsistent_claims(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Claims that nobody has swept for a day after their lease ended, and windows that were done and never started."""
    if asked.members == EVERYBODY:
        yield from findings(connection, _CLAIMS, asked.parameters())


_EVENTS = breaches(sql(__file__, "events", periods=PERIODS))
_MAILS = breaches(sql(__file__, "mails"))
_CLAIMS = breaches(sql(__file__, "claims"))
