"""What of a movement is left, as SQL: one answer for all who decide what becomes of a reservation or of its money."""

from __future__ import annotations


def kept(movement: str, until: str | None = None) -> str:
    """SQL: minor units of `movement`, a row of money_movement by its alias, that are still here, or were `until` then.

    What reverses it may be reversed in turn (a refund that is voided, a chargeback that is won), and need not name the
    reservation. `until`: the SQL of an instant; what is dated at it or later is left out.
    """
    by_then = "" if until is None else f"WHERE back.occurred_at < {until}"
    return f"""(
    WITH RECURSIVE story (id, amount) AS (
        SELECT {movement}.id, {movement}.amount
        UNION ALL
        SELECT back.id, back.amount FROM story JOIN money_movement AS back ON back.reverses_id = story.id {by_then})
    SELECT sum(amount) FROM story)"""


# The captures of `reservation` of which anything is still here.
KEPT_CAPTURE = f"""
    FROM money_movement AS capture
    WHERE capture.reservation_id = reservation.id AND kind = 'CAPTURE' AND NOT is_void AND {kept("capture")} > 0
"""
