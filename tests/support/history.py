"""Organizations that come with a history, and what the oracle says they are owed, by it and since it."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Engine, text

from tests.support.oracle import AMOUNTS, expected
from tests.support.payable import request, rows
from tests.support.settled import NOW, settle
from ticketflow_orch.closing import close_month
from ticketflow_orch.months import Month, months_between

# Two years before the first month in which anybody sold anything here.
HISTORY = Month(2024, 1)

NET = AMOUNTS.index("net")

OPENING = 7_777


def add_sales(engine: Engine, organization: int, first: Month, last: Month) -> None:
    """A sale in each month, each of another amount, and a refund in every third."""
    with engine.begin() as connection:
        connection.execute(
            text("""
                WITH sale AS (
                    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount,
                        commission_rate_bps, commission_tax_bps, occurred_at)
                    SELECT :id || ' ' || month, :id, 'CAPTURE', 'EUR',
                        100000 + 13 * extract(month FROM month)::int + :id, 1000, 2000, month + interval '9 days'
                    FROM generate_series(CAST(:first AS date), CAST(:last AS date), '1 month') AS month
                    RETURNING id, external_ref, occurred_at
                )
                INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, reverses_id,
                    commission_rate_bps, commission_tax_bps, occurred_at)
                SELECT external_ref || ' back', :id, 'REFUND', 'EUR', -7, id, 1000, 2000, occurred_at
                FROM sale WHERE extract(month FROM occurred_at)::int % 3 = 0
            """.replace(":id", "CAST(:id AS bigint)")),
            {"id": organization, "first": first.first_day, "last": last.first_day},
        )  # fmt: skip


def nets(engine: Engine) -> dict[tuple[int, str], dict[Month, int]]:
    """What all movements come to, by the oracle: organization and currency, then month."""
    found: dict[tuple[int, str], dict[Month, int]] = defaultdict(dict)
    for (organization, month, currency), amounts in expected(engine).items():
        found[organization, currency][Month.parse(month)] = amounts[NET]
    return found


def brought(engine: Engine) -> dict[tuple[int, str], int]:
    return {
        (row[0], row[1]): row[2]
        for row in rows(engine, "SELECT organization_id, currency, amount FROM opening_balance")
    }


def books_of(engine: Engine) -> dict[tuple[int, str], tuple[int, int, int]]:
    """What was paid for good, what is carried and what was settled elsewhere, by organization and currency."""
    found = rows(
        engine,
        """
        SELECT organization_id, currency,
            sum(payable) - sum(returned), (array_agg(closing ORDER BY month DESC))[1], sum(settled_elsewhere)
        FROM organization_balance GROUP BY 1, 2
        """,
    )
    return {(row[0], row[1]): (int(row[2]), int(row[3]), int(row[4])) for row in found}


def owed_since(engine: Engine, first: Month | None, account: tuple[int, str]) -> tuple[int, int]:
    """What an account is owed by months from `first` on (None: all) and by its opening balance, and its history."""
    by_month = nets(engine)[account]
    history = sum(net for month, net in by_month.items() if first is not None and month < first)
    return sum(by_month.values()) - history + brought(engine).get(account, 0), history


def close_through(engine: Engine, first: Month, last: Month) -> None:
    for month in months_between(first, last):
        settle(engine, month)
        close_month(engine, month, now=NOW, first_month=HISTORY, closed_by="test", run_id="run")
        request(engine, month)
