"""What is left in currencies that were withdrawn, and what moved in one that was not in use, as questions."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, findings
from ticketflow_orch.settlement.checks import Finding
from ticketflow_orch.settlement.currencies import STILL_IN_WITHDRAWN, out_of_use

_MEMBERS = "BETWEEN %(low)s::bigint AND %(high)s::bigint"


def left_in_withdrawn(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Organizations whose currency is withdrawn, and what the last closed month carries in such currencies."""
    yield from findings(connection, _LEFT, asked.parameters())


def moved_out_of_use(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Movements in a currency that was not in use then by more than a month; what reverses or corrects aside."""
    yield from findings(connection, _MOVED, asked.parameters())


_LEFT = f"""
    SELECT CAST(NULL AS date), external_ref, CAST(code AS text),
        'is its currency, and was in use until ' || to_char(last_day, 'YYYY-MM-DD')
    FROM ({STILL_IN_WITHDRAWN}) AS still
    WHERE organization_id {_MEMBERS}
    UNION ALL
    SELECT CAST(balance.month AS date), external_ref, CAST(code AS text),
        'carries ' || closing || ', and the currency was in use until ' || to_char(last_day, 'YYYY-MM-DD')
    FROM organization_balance AS balance
    JOIN currency ON code = balance.currency
    JOIN organization ON organization.id = organization_id
    WHERE balance.month = (SELECT max(month) FROM settlement_period WHERE state = 'CLOSED') AND closing <> 0
        AND last_day < CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) AND organization_id {_MEMBERS}
"""

# By the month of the instant in UTC, which is near enough for what is only listed.
_MOVED = f"""
    SELECT CAST(date_trunc('month', occurred_at AT TIME ZONE 'UTC') AS date), organization.external_ref,
        CAST(code AS text), movement.external_ref || ' of ' || to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')
            || ' over ' || amount || ', and the currency was in use ' || concat_ws(' ',
            'from ' || to_char(first_day, 'YYYY-MM-DD'), 'until ' || to_char(last_day, 'YYYY-MM-DD'))
    FROM money_movement AS movement
    JOIN currency ON code = movement.currency
    JOIN organization ON organization.id = organization_id
    WHERE reverses_id IS NULL AND movement.kind <> 'MANUAL' AND organization_id {_MEMBERS}
        AND {out_of_use("occurred_at")}
"""
