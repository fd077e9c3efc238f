"""A payment provider without a wire: takes what the outbox asks for and answers, as the relay would record it."""

from __future__ import annotations

import json
from random import Random

from sqlalchemy import Engine, text

from tests.support.payable import messages_of, requested_payout
from tests.support.sql_statements import execute, take
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.outbox.delivery import Message, Outcome, Verdict
from ticketflow_orch.outbox.delivery.handlers import Recorded
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.payouts.provider_answers import record_payouts

CONFIRMED = {"status": "confirmed", "provider_ref": "po_1"}
REJECTED = {"status": "rejected", "reason": "account closed"}

_TAKE = text("""
    UPDATE outbox_event SET state = 'INFLIGHT', owner = 'provider', attempts = attempts + 1,
        first_attempt_at = coalesce(first_attempt_at, clock_timestamp()),
        lease_until = clock_timestamp() + interval '1 minute'
    WHERE state = 'PENDING' AND event_type = 'PayoutRequested'
    RETURNING *
""")

_DELIVERED = text("""
    UPDATE outbox_event SET state = 'DELIVERED', ended_at = clock_timestamp(), available_at = NULL,
        lease_until = NULL, owner = NULL
    WHERE id = :id
""")


def said(answer: object, status: int = 200) -> Outcome:
    """The outcome of a request that was answered with 2xx."""
    return Outcome(Verdict.DELIVERED, None, status, json.dumps(answer))


def recorded(engine: Engine, state: EventState, outcome: Outcome | None = None) -> None:
    """Let the relay record that the event came to `state`."""
    with transaction(engine) as connection:
        record_payouts(connection, [Recorded(message, state, outcome) for message in messages_of(engine)])


def in_doubt(engine: Engine, state: str = "IN_DOUBT") -> str:
    """The reference of a payout in doubt whose event came to `state`."""
    reference = requested_payout(engine)
    take(engine, "event_type = 'PayoutRequested'")
    execute(
        engine,
        f"""
        UPDATE outbox_event SET state = '{state}', available_at = NULL, lease_until = NULL, owner = NULL,
            doubtful_since = now(), ended_at = CASE WHEN '{state}' = 'DELIVERED' THEN now() END
        """,
    )
    if state == "DELIVERED":
        recorded(engine, "DELIVERED", said({"status": "taken"}))
    else:
        recorded(engine, "DEAD", Outcome(Verdict.UNKNOWN, "No answer."))
    return reference


class Provider:
    """Confirms most payouts, rejects some, and of some says nothing that anybody understands.

    `paid`: what left, by our reference; `took_back`: what it said later came back.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.paid: dict[str, tuple[str, str, int]] = {}
        self.took_back: set[str] = set()

    def answer(self, engine: Engine, undecided: float = 0) -> None:
        """Answer what is asked; with the probability `undecided` nobody answers today."""
        if self._random.random() < undecided:
            return
        with transaction(engine) as connection:
            recorded = []
            for row in connection.execute(_TAKE).all():
                message = Message(
                    row.event_id, row.event_type, row.aggregate_type, row.aggregate_id, json.dumps(row.payload),
                    row.occurred_at, None, row.attempts,
                )  # fmt: skip
                answer = self._decide(row.payload)
                recorded.append(Recorded(message, "DELIVERED", Outcome(Verdict.DELIVERED, None, 200, answer)))
                connection.execute(_DELIVERED, {"id": row.id})
            record_payouts(connection, recorded)

    def _decide(self, payload: dict[str, str | int]) -> str:
        reference = str(payload["reference"])
        assert reference not in self.paid, f"{reference} is asked for twice"
        chance = self._random.random()
        if chance < 0.12:
            return json.dumps({"status": "rejected", "reason": "account closed"})
        if chance < 0.15:
            return "<html>"
        self.paid[reference] = str(payload["organization"]), str(payload["currency"]), int(payload["amount"])
        return json.dumps({"status": "confirmed", "provider_ref": f"po-{reference}"})
