"""What of a capture was kept, as SQL: one answer for all who decide what becomes of a reservation."""

from __future__ import annotations

# Minor units of `capture` that are still here. What reverses it may be reversed in turn (a refund that is voided, a
# chargeback that is won), and need not name the reservation.
KEPT = """(
    WITH RECURSIVE story (id, amount) AS (
        SELECT capture.id, capture.amount
        UNION ALL
        SELECT back.id, back.amount FROM story JOIN money_movement AS back ON back.reverses_id = story.id)
    SELECT sum(amount) FROM story)"""

# The captures of `reservation` of which anything is still here.
KEPT_CAPTURE = f"""
    FROM money_movement AS capture
    WHERE capture.reservation_id = reservation.id AND kind = 'CAPTURE' AND NOT is_void AND {KEPT} > 0
"""
