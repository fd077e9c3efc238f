"""Whether payouts stand on balances, were asked for, and come back once, as questions to the database."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, findings
from ticketflow_orch.closing.history import pays_from
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.checks import Finding


def unbacked_payouts(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Payouts that are not what a closed balance pays, or whose event is missing, asks for another sum or disagrees."""
    yield from findings(connection, _UNBACKED, asked.parameters())


def shared_references(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Payouts that the provider knows by one reference: it paid one of them, whatever it said of the others."""
    yield from findings(connection, _SHARED_REFERENCES, asked.parameters())


def returned_otherwise(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Balances that took back another sum than the payouts that came back with their month."""
    yield from findings(connection, _RETURNED_OTHERWISE, asked.parameters())


def unpaid_payables(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """What closed months owe and nobody pays: payouts are off, or begin with a later month. Sums by currency."""
    rows = connection.exec_driver_sql(_UNPAID, asked.parameters()).all()
    for month in dict.fromkeys(row.month for row in rows):
        yield Finding.listed(
            Month.of_day(month),
            [
                ("", row.currency, f"{written_out(row.amount, row.exponent)} for {row.balances:,} balances: {row.why}")
                for row in rows
                if row.month == month
            ],
        )


_MEMBERS = "organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint"

# Which states of its event a payout may meet; the event is gone where the retention deleted it, or where a payout was
# rejected before it was ever asked for. What is in doubt may be asked for again at the desk of the outbox.
_AGREES = """
    CASE payout.state
        WHEN 'HELD' THEN event.state IS NULL OR event.state = 'HELD'
        WHEN 'REQUESTED' THEN event.state IS NULL OR event.state IN ('PENDING', 'INFLIGHT', 'DELIVERED', 'SUPPRESSED')
        WHEN 'IN_DOUBT' THEN true
        ELSE event.state IS NULL OR event.state IN ('DELIVERED', 'SUPPRESSED')
    END
"""

_UNBACKED = f"""
    SELECT payout.month::date, coalesce(external_ref, 'id ' || payout.organization_id), payout.currency,
        'payout ' || public_id || ' of ' || payout.amount || ' is ' || payout.state || CASE
            WHEN period.state IS DISTINCT FROM 'CLOSED' THEN ', and the month is ' || coalesce(period.state, 'unknown')
            WHEN payable IS DISTINCT FROM payout.amount
                THEN ', and the balance pays ' || coalesce(payable::text, 'nothing')
            WHEN event.state IS NULL THEN ', and its event is missing'
            WHEN NOT ({_AGREES}) THEN ', and its event is ' || event.state
            ELSE ', and its event asks for ' || coalesce(payload ->> 'amount', 'nothing') || ' '
                || coalesce(payload ->> 'currency', '')
        END
    FROM payout
    LEFT JOIN settlement_period AS period ON period.month = payout.month
    LEFT JOIN organization_balance AS balance ON balance.organization_id = payout.organization_id
        AND balance.month = payout.month AND balance.currency = payout.currency
    LEFT JOIN organization ON organization.id = payout.organization_id
    LEFT JOIN outbox_event AS event ON dedupe_key = 'PayoutRequested:' || public_id
    WHERE payout.{_MEMBERS} AND (
        period.state IS DISTINCT FROM 'CLOSED' OR payable IS DISTINCT FROM payout.amount OR NOT ({_AGREES})
        OR (event.state IS NULL AND payout.created_at > clock_timestamp() - %(kept)s::interval
            AND payout.state NOT IN ('HELD', 'REJECTED'))
        OR (event.state IS NOT NULL AND (payload ->> 'amount', payload ->> 'currency')
            IS DISTINCT FROM (payout.amount::text, payout.currency::text)))
"""

_SHARED_REFERENCES = f"""
    SELECT CAST(month AS date), coalesce(external_ref, 'id ' || organization_id), payout.currency,
        'payout ' || public_id || ' of ' || amount || ' is one of ' || sharing || ' that the provider calls '
            || provider_ref
    FROM (
        SELECT payout.*, count(*) OVER (PARTITION BY provider_ref) AS sharing FROM payout
        WHERE provider_ref IS NOT NULL AND state NOT IN ('REJECTED', 'RETURNED')
    ) AS payout
    LEFT JOIN organization ON organization.id = organization_id
    WHERE sharing > 1 AND {_MEMBERS}
"""

_RETURNED_OTHERWISE = f"""
    WITH came_back AS (
        SELECT organization_id, currency, CAST(returned_month AS date) AS month, sum(amount) AS amount,
            max(CAST(month AS date)) AS last_paid
        FROM payout WHERE returned_month IS NOT NULL AND {_MEMBERS}
        GROUP BY organization_id, currency, returned_month
    ), taken AS (
        SELECT organization_id, currency, CAST(month AS date) AS month, returned FROM organization_balance
        WHERE returned <> 0 AND {_MEMBERS}
    )
    SELECT month, coalesce(external_ref, 'id ' || organization_id), different.currency,
        'took back ' || coalesce(returned, 0) || ', and payouts of ' || coalesce(amount, 0) || ' came back'
            || CASE WHEN last_paid >= month THEN ' before they were due' ELSE '' END
    FROM (SELECT * FROM taken FULL JOIN came_back USING (organization_id, currency, month)) AS different
    LEFT JOIN organization ON organization.id = organization_id
    WHERE returned IS DISTINCT FROM amount OR last_paid >= month
"""

_UNPAID = sql(__file__, "unpaid", pays_from=pays_from(), members=_MEMBERS)
