"""Whether an event that asks for money has its payout behind it: what nobody owes is never sent.

The database refuses such an event when it is written; this is asked before every attempt all the same, about whatever
is there by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from ticketflow_orch.delivery import Message

# An aggregate's id is any text.
PAYOUT_OF_EVENT = """
    outbox_event AS event
    LEFT JOIN payout ON public_id = CASE
        WHEN aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN CAST(aggregate_id AS uuid) END
    LEFT JOIN organization ON organization.id = payout.organization_id
"""
# Why an event does not ask for what its payout owes, as part of a sentence; NULL: it does.
OBJECTION = """
    CASE
        WHEN payout.id IS NULL THEN 'there is no such payout'
        WHEN aggregate_type <> 'payout' OR dedupe_key <> 'PayoutRequested:' || public_id
            THEN 'it is not the event of its payout'
        WHEN event.body IS NOT NULL THEN 'it carries bytes that its payout does not say'
        WHEN NOT payload @> jsonb_build_object(
                'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),
                'currency', payout.currency, 'amount', amount)
            THEN 'the payout is of ' || amount || ' ' || payout.currency || ' to ' || external_ref || ' for '
                || to_char(month, 'YYYY-MM')
    END
"""


def unbacked(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, str]:
    """Why `messages` must not be sent, by event id; those that are not named may: a `Guard`."""
    rows = connection.execute(_UNBACKED, {"event_ids": [message.event_id for message in messages]})
    return {row.event_id: f"It asks for a payout that is not owed so: {row.objection}." for row in rows}


# What is in doubt may be asked for again.
_UNBACKED = text(f"""
    SELECT * FROM (
        SELECT event_id, coalesce({OBJECTION}, CASE WHEN payout.state NOT IN ('REQUESTED', 'IN_DOUBT')
            THEN 'the payout is ' || payout.state END) AS objection
        FROM {PAYOUT_OF_EVENT}
        WHERE event_id = ANY (CAST(:event_ids AS uuid[]))
    ) AS asked
    WHERE objection IS NOT NULL
""")
