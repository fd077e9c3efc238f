"""Enough movements and entries for plans to matter, and what a plan reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, text

ZONES = ("Europe/Madrid", "Asia/Tokyo", "America/New_York")
ORGANIZATIONS = 900
Node = dict[str, Any]


def add_movements(engine: Engine, months: int) -> None:
    """`ORGANIZATIONS` organizations with two movements a month, in the `months` months that end with March."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # As a replica applies rows, which is quicker.
        connection.exec_driver_sql("SET session_replication_role = replica")
        connection.exec_driver_sql("TRUNCATE organization, money_movement RESTART IDENTITY CASCADE")
        connection.execute(
            text("""
                INSERT INTO organization (external_ref, name, timezone, currency, commission_rate_bps,
                    commission_tax_bps, joined_on)
                SELECT number, number, (CAST(:zones AS text[]))[1 + number % 3], 'EUR', 1000, 2000, DATE '2020-01-01'
                FROM generate_series(1, CAST(:organizations AS integer)) AS number
            """),
            {"organizations": ORGANIZATIONS, "zones": list(ZONES)},
        )
        connection.execute(
            text("""
                INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount,
                    commission_rate_bps, commission_tax_bps, occurred_at, recorded_at)
                SELECT concat_ws('-', age, day, organization.id), organization.id, 'CAPTURE', currency, 1000,
                    commission_rate_bps, commission_tax_bps, at, at
                FROM generate_series(0, CAST(:months AS integer) - 1) AS age, generate_series(10, 20, 10) AS day,
                    organization, CAST(make_timestamptz(2026, 3, day, 12, 0, 0) - make_interval(months => age)
                        AS timestamptz) AS at
            """),
            {"months": months},
        )
        connection.exec_driver_sql("INSERT INTO settlement_period (month) VALUES ('2026-03-01') ON CONFLICT DO NOTHING")
        connection.exec_driver_sql("RESET session_replication_role")
        connection.exec_driver_sql("VACUUM (ANALYZE) organization, money_movement, ledger_entry")


def add_entries_of_the_months_before(engine: Engine, months: int) -> None:
    """An entry for each organization in each of the `months` months before March, one month after the other."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET session_replication_role = replica")
        connection.execute(
            text("""
                INSERT INTO ledger_entry (organization_id, month, currency, origin_month, sequence, captures, refunds,
                    chargebacks, fees, commission, commission_tax, net, settlement_pass)
                SELECT organization.id, month, currency, month, 0, 0, 0, 0, 0, 0, 0, 0, 1
                FROM generate_series(1, CAST(:months AS integer)) AS age, organization,
                    CAST(DATE '2026-03-01' - make_interval(months => age) AS date) AS month
                ORDER BY month, organization.id
            """),
            {"months": months},
        )
        connection.exec_driver_sql("RESET session_replication_role")
        connection.exec_driver_sql("VACUUM (ANALYZE) ledger_entry")


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans_of(plan: Node, table: str) -> list[Node]:
    return [node for node in nodes(plan) if node.get("Relation Name") == table and "Scan" in node["Node Type"]]


def plan_of(cursor: Any, statement: str, parameters: Any) -> Node:
    """The plan of a statement that is about to be executed, with what it did; nothing of that stays."""
    with cursor.connection.cursor() as own:
        own.execute("SAVEPOINT before")
        own.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
        ((explained,),) = own.fetchall()
        own.execute("ROLLBACK TO before")
    plan: Node = explained[0]["Plan"]
    return plan
