"""Payouts: what a closed month owes each organization, requested once, answered once, to the cent.

`request` writes a month's payouts and their `events`, `review` holds back what looks far too much, `backing` asks
before each attempt whether the money is owed, `provider_answers` applies what the payment provider says, `actions`,
`parking` and `pause` are what people decide, `paid_from` from when on anybody is paid, `queries` what people read,
`invariants` what must hold. What is owed is computed in `closing`, and statements say why: neither is here.

A payout is written with its outbox event `PayoutRequested`, whose id is the provider's idempotency key and whose
`data.reference` is the payout's public id: the name under which the provider is asked about it later. Where nobody can
know whether money left, the payout is IN_DOUBT and nothing but a person, or an answer, gets it out of there: money that
may have left is never given back to the balance, and never sent under another name.
"""

from __future__ import annotations

from ticketflow_orch.payouts.request import (
    CurrencyRequested,
    PayoutRules,
    PayoutsLeftOutError,
    PayoutsRequested,
    request_payouts,
)

__all__ = ["CurrencyRequested", "PayoutRules", "PayoutsLeftOutError", "PayoutsRequested", "request_payouts"]
