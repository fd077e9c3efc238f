"""The outbox event that asks the provider for a payout: its type and key, how it is written, how it is let go.

What decides about a payout is in `actions`, what the provider answers in `provider_answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.decisions import waking
from ticketflow_orch.outbox.events import appending

EVENT_TYPE = "PayoutRequested"
AGGREGATE = "payout"
# The key of a payout's event, SQL of a row of `payout`; nothing else that is joined may have a `public_id`.
EVENT_KEY = f"'{EVENT_TYPE}:' || public_id"

# The SQL that writes the events of the payouts in a CTE called `asked`. A payout that is asked for again after a
# restore must be asked for in the same bytes: so the event is dated by its month.
EVENTS = appending(
    EVENT_TYPE,
    "asked JOIN organization ON organization.id = organization_id ORDER BY organization_id, asked.currency",
    aggregate_type=AGGREGATE,
    aggregate_id="CAST(public_id AS text)",
    payload="""jsonb_build_object(
        'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),
        'currency', asked.currency, 'amount', amount)""",
    dedupe_key=EVENT_KEY,
    occurred_at="(month + interval '1 month') AT TIME ZONE 'UTC'",
    known="skip",
)


def let_go(connection: Connection, references: Sequence[UUID | str]) -> None:
    """Have these payouts sent, which are REQUESTED in this transaction and were held until now."""
    connection.exec_driver_sql(_LET_GO, {"references": references})


_LET_GO = sql(__file__, "let_go", woken=waking("asked", EVENT_KEY), events=EVENTS)
