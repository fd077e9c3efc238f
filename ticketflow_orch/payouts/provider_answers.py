"""What the payment provider says about a payout, applied once, in the transaction that finishes its delivery.

Only an answer in the provider's own words decides about money: a 2xx whose JSON says `"status": "confirmed"` or
`"rejected"`, be it to our request or to a look-up by our reference. Anything else that ends the delivery makes the
payout IN_DOUBT and alerts: a 2xx that says something else, an idempotency conflict (an earlier attempt may have been
applied under the same key), attempts used up. Even where the last refusal was a definite one: giving money back to the
balance is as final as sending it, so a person does it, once, by `resolve`. Nothing is sent or returned meanwhile, so no
cent is lost and none goes out twice.

The first answer wins. One that says the opposite later, or knows the payout by another reference, is alerted and
changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from ticketflow_orch import clock
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.alerts import Alert, alert_all
from ticketflow_orch.outbox.delivery import printable
from ticketflow_orch.outbox.delivery.handlers import Recorded
from ticketflow_orch.payouts.events import EVENT_KEY
from ticketflow_orch.payouts.model import PayoutState
from ticketflow_orch.payouts.references import alert_shared, shares

IN_DOUBT_ALERT = "PayoutInDoubt"
CONTRADICTED_ALERT = "PayoutContradicted"
# What the provider says, and what that makes of the payout.
_STATES = {"confirmed": PayoutState.CONFIRMED, "rejected": PayoutState.REJECTED}
_SUCCESS = range(200, 300)
# As much of what somebody else wrote as a person wants to read.
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a payout: CONFIRMED, REJECTED, or IN_DOUBT or HELD with the reason why; None: nothing new."""

    state: PayoutState | None
    reason: str | None = None
    provider_ref: str | None = None


def record_payouts(connection: Connection, recorded: Sequence[Recorded]) -> None:
    """Record what became of payouts' events, in the transaction that changes them: a `Recorder`.

    Each payout moves once, and each alert is sent once.
    """
    recorded = [one for one in recorded if _is_uuid(one.message.aggregate_id)]
    answers = [read_answer(one) or Answer(None) for one in recorded]
    rows = connection.exec_driver_sql(
        _APPLY,
        {
            "references": [one.message.aggregate_id for one in recorded],
            "attempts": [one.message.attempt for one in recorded],
            "answers": [answer.state for answer in answers],
            "reasons": [answer.reason for answer in answers],
            "provider_refs": [answer.provider_ref for answer in answers],
        },
    ).all()
    now = clock.now()
    alert_all(connection, list(_alerts(rows, now)), now)
    alert_shared(connection, [row.provider_ref for row in rows if row.shared], now)


def read_answer(recorded: Recorded) -> Answer | None:
    """What became of a payout by what became of its event; None where that is not known, or not yet.

    A destination without a protocol of answers (a file) has no status: the payout waits for somebody to confirm it.
    """
    outcome = recorded.outcome
    if recorded.state == "HELD":
        return Answer(PayoutState.HELD, _short(outcome.error if outcome and outcome.error else "its event is held"))
    if recorded.state in {"DEAD", "IN_DOUBT", "SUPPRESSED"}:
        return Answer(
            PayoutState.IN_DOUBT,
            _short(outcome.error if outcome and outcome.error else "its event is not sent any more"),
        )
    if recorded.state != "DELIVERED" or outcome is None or outcome.status not in _SUCCESS:
        return None
    payload = recorded.message.payload
    try:
        said = json.loads(outcome.response)
    except (ValueError, RecursionError):
        said = None
    state = _STATES.get(str(said.get("status"))) if isinstance(said, dict) else None
    if state is None:
        return Answer(
            PayoutState.IN_DOUBT, f"the provider said neither confirmed nor rejected: {_short(outcome.response)!r}"
        )
    # An answer about another payout, or to another amount, is no answer to this one.
    other = [name for name in ("reference", "amount", "currency") if said.get(name, payload[name]) != payload[name]]
    if other:
        words = f"{_short(str(said[other[0]]))} instead of {payload[other[0]]}"
        return Answer(PayoutState.IN_DOUBT, f"the provider answered about another {other[0]}: {words}")
    # Why money comes back stands in the organization's statement.
    reason = _text(said, "reason") or ("the provider rejected it" if state == PayoutState.REJECTED else None)
    return Answer(state, reason, _text(said, "provider_ref"))


def _alerts(rows: Iterable[Row[Any]], now: datetime) -> Iterable[Alert]:
    for row in rows:
        payload = {
            "reference": str(row.public_id), "state": row.before, "answer": row.answer,
            "reason": row.reason, "provider_ref": row.provider_ref,
        }  # fmt: skip
        if row.applied:
            if row.answer == PayoutState.IN_DOUBT:
                # After a restore attempts are counted anew.
                key = f"{row.public_id}/{row.attempt} at {now.isoformat()}"
                yield Alert(IN_DOUBT_ALERT, key, payload, subject=IN_DOUBT_ALERT)
        elif _contradicts(row.answer, row.before):
            yield Alert(CONTRADICTED_ALERT, f"{row.public_id}/{row.answer}", payload, subject=str(row.public_id))
        elif row.other_reference:
            yield Alert(CONTRADICTED_ALERT, f"{row.public_id}/{row.provider_ref}", payload, subject=str(row.public_id))


def _contradicts(answer: str, before: str) -> bool:
    """Whether the provider, by its `answer`, says of a payout in the state `before` that it ended another way."""
    ended = PayoutState.CONFIRMED if before == PayoutState.RETURNED else before
    return answer in _STATES.values() and answer != ended


def _is_uuid(words: str) -> bool:
    try:
        return str(UUID(words)) == words
    except ValueError:
        return False


def _text(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    return None if value is None else _short(str(value))


def _short(words: str) -> str:
    return printable(words).strip()[:_LONGEST]


_APPLY = sql(__file__, "apply", event_key=EVENT_KEY, shares=shares("before"))
