"""What a payout can be. What people read of payouts is in `queries`, how one changes in `actions`."""

from __future__ import annotations

from enum import StrEnum


class PayoutState(StrEnum):
    """The states of a payout, as the table `payout` has them."""

    HELD = "HELD"
    REQUESTED = "REQUESTED"
    CONFIRMED = "CONFIRMED"
    REJECTED = "REJECTED"
    RETURNED = "RETURNED"
    IN_DOUBT = "IN_DOUBT"
