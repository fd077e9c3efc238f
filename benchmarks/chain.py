"""What one backfill of 24 months over the whole chain costs beyond the work itself: settle, close, pay, state."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from sqlalchemy import Engine, text

from tests.end_to_end.back_office import opened
from tests.end_to_end.chain import backfill_chain, checks
from ticketflow_orch.local.postgres import EmbeddedServer

MONTHS = [f"{year}-{number:02d}" for year in (2023, 2024) for number in range(1, 13)]
NOW = "2025-01-10T05:00:00Z"
PATIENCE = 3600.0


def main() -> None:
    """Sell, backfill, and print what it took; exit code 1 unless every month ended as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--organizations", type=int, default=2_000, help="each sells three times a month")
    parser.add_argument("--months", type=int, default=len(MONTHS), choices=range(1, len(MONTHS) + 1), metavar="1…24")
    chosen = parser.parse_args()
    months = MONTHS[: chosen.months]
    home = Path(tempfile.mkdtemp(prefix="tf-"))
    home.chmod(0o755)  # Postgres runs as another account when we are root
    try:
        with opened(
            home, TICKETFLOW_FIRST_MONTH=months[0], TICKETFLOW_FIXED_CLOCK=NOW, TICKETFLOW_PAYOUTS_FROM=months[0]
        ) as office:
            for schedule in ("settlement_schedule", "close_books_schedule", "payouts_schedule", "statements_schedule"):
                office.stop_schedule(schedule)
            sell(office.engine, chosen.organizations, months)
            done = backfill_chain(office, months, PATIENCE)
            red = sorted(name for name, passed in checks(office).items() if not passed)
            order = closed_in_order(office.engine)
        print(f"{chosen.organizations:,} organizations, {done}")
        print(f"{done.status}; closed in order: {order == months}; red checks: {', '.join(red) or 'none'}")
        if done.status != "COMPLETED_SUCCESS" or red or order != months:
            raise SystemExit(1)
    finally:
        EmbeddedServer(home).remove()
        shutil.rmtree(home)


def sell(engine: Engine, organizations: int, months: list[str]) -> None:
    """Three captures a month for each organization, one of which is refunded in the month after."""
    with engine.begin() as connection:
        connection.execute(ORGANIZATIONS, {"organizations": organizations})
        connection.execute(CAPTURES, {"first": f"{months[0]}-01", "months": len(months)})
        connection.execute(REFUNDS, {"until": f"{months[-1]}-01"})


def closed_in_order(engine: Engine) -> list[str]:
    """The closed months in the order in which they were closed."""
    with engine.connect() as connection:
        return list(connection.execute(CLOSED).scalars())


ORGANIZATIONS = text("""
    INSERT INTO organization (external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
        joined_on)
    SELECT 'hall-' || number, 'Hall ' || number, 'Europe/Madrid', 'EUR', 1000, 2000, DATE '2020-01-01'
    FROM generate_series(1, CAST(:organizations AS integer)) AS number
""")

CAPTURES = text("""
    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    SELECT 'sale-' || id || '-' || number || '-' || sale, id, 'CAPTURE', 'EUR', 1000 + id % 977 + sale, 1000, 2000,
        CAST(:first AS date) + number * interval '1 month' + sale * interval '7 days'
    FROM organization, generate_series(0, CAST(:months AS integer) - 1) AS number, generate_series(1, 3) AS sale
""")

REFUNDS = text("""
    INSERT INTO money_movement (external_ref, organization_id, kind, reverses_id, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    SELECT 'refund-of-' || external_ref, organization_id, 'REFUND', id, currency, -amount, commission_rate_bps,
        commission_tax_bps, occurred_at + interval '1 month'
    FROM money_movement
    WHERE external_ref LIKE '%-1' AND organization_id % 10 = 0 AND occurred_at < CAST(:until AS date)
""")

CLOSED = text("SELECT to_char(month, 'YYYY-MM') FROM settlement_period WHERE state = 'CLOSED' ORDER BY closed_at")


if __name__ == "__main__":
    main()
