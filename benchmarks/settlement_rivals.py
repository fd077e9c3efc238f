"""What the settlement is measured against: one bare INSERT … SELECT in two shapes, and a loop over organizations."""

from __future__ import annotations

import time
from datetime import date
from decimal import ROUND_HALF_UP, Decimal

from sqlalchemy import Connection, Engine, text

from benchmarks.settlement_data import MONTH
from ticketflow_orch.months import Window
from ticketflow_orch.periods.zones import zones_in_use
from ticketflow_orch.settlement.posting import AMOUNTS, LARGEST_ID, month_parameters

# As long as the id that Dagster gives a run.
RUN_ID = "0" * 36

# One probe of the index for each organization, as the settlement does it. With OFFSET 0 the planner looks each zone up
# once, instead of comparing every organization with every zone.
_BY_PROBES = """
        SELECT organization.id AS organization_id, found.*
        FROM organization
        CROSS JOIN LATERAL (
            SELECT starts_at, ends_at FROM time_window WHERE time_window.timezone = organization.timezone OFFSET 0
        ) AS zone_window
        CROSS JOIN LATERAL (
            SELECT currency, commission_rate_bps, commission_tax_bps, kind, amount
            FROM money_movement
            WHERE organization_id = organization.id AND occurred_at >= starts_at AND occurred_at < ends_at
                AND money_movement.id < CAST(:cutoff AS bigint)
            UNION ALL
            SELECT organization.currency, organization.commission_rate_bps, organization.commission_tax_bps,
                'CAPTURE', 0
            WHERE joined_on < CAST(:next_origin AS date) AND (left_on IS NULL OR left_on >= CAST(:origin AS date))
        ) AS found"""

# Whole tables, joined and hashed.
_BY_JOINS = """
        SELECT organization_id, money_movement.currency, money_movement.commission_rate_bps,
            money_movement.commission_tax_bps, kind, amount
        FROM money_movement
        JOIN organization ON organization.id = organization_id
        JOIN time_window USING (timezone)
        WHERE occurred_at >= (SELECT min(starts_at) FROM time_window)
            AND occurred_at < (SELECT max(ends_at) FROM time_window)
            AND occurred_at >= starts_at AND occurred_at < ends_at
            AND money_movement.id < CAST(:cutoff AS bigint)
        UNION ALL
        SELECT id, currency, commission_rate_bps, commission_tax_bps, 'CAPTURE', 0
        FROM organization JOIN time_window USING (timezone)
        WHERE joined_on < CAST(:next_origin AS date) AND (left_on IS NULL OR left_on >= CAST(:origin AS date))"""

SHAPES = {"bare, by probes": _BY_PROBES, "bare, by joins": _BY_JOINS}


def one_statement(engine: Engine, shape: str) -> float:
    """Seconds that one bare INSERT … SELECT of that shape takes for the whole month, its commit included."""
    statement = text(f"""
        WITH time_window AS MATERIALIZED (
            SELECT * FROM unnest(
                CAST(:timezones AS text[]), CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
            ) AS zone_window (timezone, starts_at, ends_at)
        ), movement AS ({SHAPES[shape]}
        ), line AS (
            SELECT organization_id, currency, commission_tax_bps,
                round(sum(amount) * commission_rate_bps * 0.0001) AS commission,
                coalesce(sum(amount) FILTER (WHERE kind = 'CAPTURE'), 0) AS captures,
                coalesce(sum(amount) FILTER (WHERE kind = 'REFUND'), 0) AS refunds,
                coalesce(sum(amount) FILTER (WHERE kind IN ('CHARGEBACK', 'CHARGEBACK_REVERSAL')), 0) AS chargebacks,
                coalesce(sum(amount) FILTER (WHERE kind IN ('FEE', 'MANUAL')), 0) AS fees
            FROM movement
            GROUP BY organization_id, currency, commission_rate_bps, commission_tax_bps
        ), total AS (
            SELECT organization_id, currency, sum(captures) AS captures, sum(refunds) AS refunds,
                sum(chargebacks) AS chargebacks, sum(fees) AS fees, sum(commission) AS commission,
                sum(round(commission * commission_tax_bps * 0.0001)) AS commission_tax
            FROM line
            GROUP BY organization_id, currency
        )
        INSERT INTO ledger_entry (organization_id, month, currency, origin_month, sequence, captures, refunds,
            chargebacks, fees, commission, commission_tax, net, settlement_pass, run_id)
        SELECT organization_id, CAST(:origin AS date), currency, CAST(:origin AS date), 0, captures, refunds,
            chargebacks, fees, commission, commission_tax,
            captures + refunds + chargebacks + fees - commission - commission_tax, 1, CAST(:run_id AS text)
        FROM total
    """)
    parameters = month_parameters(MONTH, _windows(engine), LARGEST_ID) | {"run_id": RUN_ID}
    started = time.monotonic()
    with engine.begin() as connection:
        connection.execute(statement, parameters)
    return time.monotonic() - started


def get_or_create(engine: Engine, sample: int) -> float:
    """Seconds per organization of the loop that a settlement starts out as, over `sample` of them, evenly spread.

    For each organization: sum its movements, look for its rows, insert those that are missing, commit.
    """
    windows = _windows(engine)
    with engine.connect() as connection:
        organizations = connection.execute(
            text("""
                SELECT id, timezone FROM organization
                WHERE id % greatest(1, (SELECT count(*) FROM organization) / CAST(:sample AS bigint)) = 0
                ORDER BY id LIMIT :sample
            """),
            {"sample": sample},
        ).all()
    started = time.monotonic()
    for organization_id, timezone in organizations:
        with engine.begin() as connection:
            _settle_one(connection, organization_id, windows[timezone])
    return (time.monotonic() - started) / len(organizations)


def _settle_one(connection: Connection, organization_id: int, window: Window) -> None:
    lines = connection.execute(
        _LINES,
        {"organization": organization_id, "origin": MONTH.first_day, "next_origin": MONTH.next().first_day}
        | {"starts_at": window.starts_at, "ends_at": window.ends_at},
    ).all()
    totals: dict[str, dict[str, int]] = {}
    for line in lines:
        commission = _rounded(line.amount, line.commission_rate_bps)
        tax = _rounded(commission, line.commission_tax_bps)
        amounts = {
            "captures": int(line.captures), "refunds": int(line.refunds), "chargebacks": int(line.chargebacks),
            "fees": int(line.fees), "commission": commission, "commission_tax": tax,
            "net": int(line.amount) - commission - tax,
        }  # fmt: skip
        total = totals.setdefault(line.currency, dict.fromkeys(AMOUNTS, 0))
        for name in AMOUNTS:
            total[name] += amounts[name]
    for currency, total in totals.items():
        key: dict[str, int | str | date] = {
            "organization": organization_id, "month": MONTH.first_day, "currency": currency,
        }  # fmt: skip
        if connection.execute(_EXISTS, key).one_or_none() is None:
            connection.execute(_CREATE, key | total | {"run_id": RUN_ID})


def _rounded(amount: Decimal | int, rate_bps: int) -> int:
    return int((Decimal(amount) * rate_bps / 10_000).quantize(Decimal(1), ROUND_HALF_UP))


def _windows(engine: Engine) -> dict[str, Window]:
    with engine.connect() as connection:
        return {name: MONTH.window(name) for name in zones_in_use(connection)}


_LINES = text("""
    SELECT currency, commission_rate_bps, commission_tax_bps, sum(amount) AS amount,
        coalesce(sum(amount) FILTER (WHERE kind = 'CAPTURE'), 0) AS captures,
        coalesce(sum(amount) FILTER (WHERE kind = 'REFUND'), 0) AS refunds,
        coalesce(sum(amount) FILTER (WHERE kind IN ('CHARGEBACK', 'CHARGEBACK_REVERSAL')), 0) AS chargebacks,
        coalesce(sum(amount) FILTER (WHERE kind IN ('FEE', 'MANUAL')), 0) AS fees
    FROM (
        SELECT currency, kind, amount, commission_rate_bps, commission_tax_bps FROM money_movement
        WHERE organization_id = :organization AND occurred_at >= :starts_at AND occurred_at < :ends_at
        UNION ALL
        SELECT currency, 'CAPTURE', 0, 0, 0 FROM organization
        WHERE id = :organization AND joined_on < :next_origin AND (left_on IS NULL OR left_on >= :origin)
    ) AS movement
    GROUP BY currency, commission_rate_bps, commission_tax_bps
""")

_EXISTS = text("""
    SELECT 1 FROM ledger_entry
    WHERE organization_id = :organization AND month = :month AND currency = :currency
        AND origin_month = :month AND sequence = 0
""")

_CREATE = text(f"""
    INSERT INTO ledger_entry (organization_id, month, currency, origin_month, sequence, {", ".join(AMOUNTS)},
        settlement_pass, run_id)
    VALUES (:organization, :month, :currency, :month, 0, {", ".join(f":{name}" for name in AMOUNTS)}, 1, :run_id)
""")
