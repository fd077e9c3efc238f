"""Whether an event that asks for money has its payout behind it: what nobody owes is never sent, nor to the parked.

The database refuses such an event when it is written; this is asked before every attempt all the same, about whatever
is there by then. So an event that a relay had claimed when its organization was parked, and did not send, waits for the
end of the parking as one does that nobody had claimed. Parking by hand itself is in `parking`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.decisions import taking_back
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.payouts.events import AGGREGATE, EVENT_KEY

# Why a payout is held whose organization is parked; after other reasons, if there are any.
PARKED = "its organization is parked"
# Of a row `parked` of parked_organization: a person parked it, and still does.
BY_HAND = "parked.resolved_at IS NULL AND parked.reason IS NOT NULL"
# The rows `event` of outbox_event, each with the `payout` and the `organization` it is about, if there are such. An
# aggregate's id is any text, so only what reads as a UUID is cast. (In a .sql file the braces would be parts.)
PAYOUT_OF_EVENT = """
    outbox_event AS event
    LEFT JOIN payout ON public_id = CASE
        WHEN aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN aggregate_id::uuid END
    LEFT JOIN organization ON organization.id = payout.organization_id
"""
# Of those rows: why an event does not ask for what its payout owes, as part of a sentence; NULL: it does.
OBJECTION = sql(__file__, "objection", aggregate=AGGREGATE, event_key=EVENT_KEY)


def is_parked(organization_id: str) -> str:
    """SQL: whether the organization with this id is parked, for whatever reason; by the partial indexes on those."""
    return sql(__file__, "is_parked", organization_id=organization_id)


def unbacked(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, str]:
    """Why `messages` must not be sent, by event id; those that are not named may: a `Guard`.

    What cannot have arrived, and is for an organization that a person has parked by now, is held here and now: the one
    who ends the parking finds it, or has ended it before.
    """
    rows = connection.exec_driver_sql(_UNBACKED, {"event_ids": [message.event_id for message in messages]}).all()
    refused = {
        row.event_id: f"It asks for a payout that is not owed so: {row.objection}." for row in rows if row.objection
    }
    parked = {row.event_id for row in rows} - refused.keys()
    unsent = [message for message in messages if message.event_id in parked and not message.doubtful]
    return refused | dict.fromkeys(_held(connection, unsent), PARKED)


def _held(connection: Connection, unsent: Sequence[Message]) -> Sequence[UUID]:
    """The events that were held; for the relay they are overtaken by that."""
    if not unsent:
        return ()
    values = {"ids": [one.event_id for one in unsent], "attempts": [one.attempt for one in unsent]}
    return connection.exec_driver_sql(_HOLD, values).scalars().all()


_UNBACKED = sql(
    __file__, "unbacked", objection=OBJECTION, parked=PARKED, by_hand=BY_HAND, payout_of_event=PAYOUT_OF_EVENT
)

_HOLD = sql(__file__, "hold", event_key=EVENT_KEY, by_hand=BY_HAND, parked=PARKED, taken_back=taking_back("waiting"))
