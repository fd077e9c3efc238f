"""Whatever happens in whatever order, books follow from what was posted: nothing is lost, nothing closed changes."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.books import FIRST, add_opening_balance, balances, breaches, close
from tests.support.oracle import Business, Key, Movement, amounts, posted, record, without_zeros
from tests.support.rows import add_organization, instant
from tests.support.settled import NOW, ledger, settle
from tests.support.sql_statements import execute
from ticketflow_orch.closing.turn import months_to_close, next_to_close
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.parking import park, unpark

EXAMPLES = int(os.environ.get("CHAOS_EXAMPLES", "3"))
STEPS = int(os.environ.get("CHAOS_STEPS", "40"))
SEED = int(os.environ["CHAOS_SEED"])
ZONES = ("Pacific/Kiritimati", "Asia/Kathmandu", "Europe/Madrid", "America/St_Johns", "Pacific/Pago_Pago")
CURRENCIES = ("EUR", "JPY", "KWD")
FOUNDERS = 6
# Movements lie from the last day of the month before to the first day of the month after.
MONTHS = tuple(months_between(Month(2026, 1), Month(2026, 4)))
AFTER = MONTHS[-1].next()

# Organization and currency.
Account = tuple[int, str]


@pytest.mark.parametrize("seed", range(SEED, SEED + EXAMPLES))
def test_books_follow_from_what_was_posted_whatever_happens_in_whatever_order(engine: Engine, seed: int) -> None:
    platform = Platform(engine, Random(seed))
    platform.sell(60)
    for _ in range(STEPS):
        platform.step()
    platform.come_to_rest()
    assert without_zeros(posted(engine)) == platform.expected(), f"CHAOS_SEED={seed}"
    assert breaches(engine) == [], f"CHAOS_SEED={seed}"
    assert_no_cent_is_lost(platform)


class Platform:
    """A platform at work, and a second set of books: kept in Python, from the ledger alone."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self.engine = engine
        self.random = random
        self.sellers: list[int] = []
        self.zones: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.parked: set[int] = set()
        self.brought: dict[Account, int] = {}
        self.until: dict[int, date] = {}
        self.carried: dict[Account, int] = {}
        self.frozen: list[tuple[Any, ...]] = []
        self.movements: list[Movement] = []
        for _ in range(FOUNDERS):
            self.join()
        self.minimum = {"EUR": random.choice([0, 5000]), "JPY": 0, "KWD": 100}
        for code, minimum in self.minimum.items():
            execute(engine, "UPDATE currency SET payout_minimum = :m WHERE code = :code", m=minimum, code=code)
        self.business = Business(
            random, self.sellers, since=instant("2025-12-31T00:00"), until=instant("2026-05-02T00:00"),
            ids=itertools.count(1),
        )  # fmt: skip

    def step(self) -> None:
        """Something happens."""
        does: Callable[[], None] = self.random.choices(
            [lambda: self.sell(self.random.choice([1, 5, 30])), self.settle_one, self.close_one, self.answer_payouts,
             self.park_or_unpark, self.join],
            [6, 8, 8, 4, 3, 1],
        )[0]  # fmt: skip
        does()
        self.assert_frozen()

    def join(self) -> None:
        """An organization comes, some with what they are owed from elsewhere."""
        number = len(self.zones)
        name = f"theatre {number}"
        organization = add_organization(
            self.engine, external_ref=name, timezone=ZONES[number % 5], currency=CURRENCIES[number % 3],
            # Who comes while others are at work is active from then on, whatever movements they bring along.
            joined_on=date(2020, 1, 1) if number < FOUNDERS else date(2026, 5, 1),
        )  # fmt: skip
        self.sellers.append(organization)
        self.zones[organization], self.names[organization] = ZONES[number % 5], name
        if self.random.random() < 0.5:
            amount = self.random.choice([-1, 1]) * self.random.randint(1, 10_000)
            add_opening_balance(self.engine, organization, amount)
            self.brought[organization, "EUR"] = amount

    def sell(self, count: int) -> None:
        made = self.business.movements(count)
        record(self.engine, made)
        self.movements += made

    def settle_one(self) -> None:
        settle(self.engine, self.random.choice(MONTHS), chunk_size=self.random.choice([1, 3, 100]))

    def close_one(self) -> None:
        """Close the month whose turn it is, if its state allows, and keep the second set of books."""
        with self.engine.connect() as connection:
            month = next(months_to_close(connection, NOW, FIRST), None)
        if month is not None and month <= AFTER:
            self.close(month)

    def close(self, month: Month) -> None:
        # As the closing does with what came since; the second set of books is read from the ledger before it.
        settle(self.engine, month)
        wanted = self.own_balances(month)
        close(self.engine, month, chunk_size=self.random.choice([1, 3, 100]))
        columns = ("organization_id", "currency", "opening", "net", "returned", "payable", "closing")
        assert balances(self.engine, *columns, where=f"month = '{month}-01'") == wanted
        execute(
            self.engine,
            """
            INSERT INTO payout (organization_id, currency, month, amount, state)
            SELECT organization_id, currency, month, payable, 'REQUESTED' FROM organization_balance
            WHERE month = :month AND payable > 0
            """,
            month=month.first_day,
        )
        self.frozen = self.all_that_is_closed()

    def own_balances(self, month: Month) -> list[tuple[Any, ...]]:
        """What the balances of `month` must be, worked out from the ledger and from what is carried."""
        nets: dict[Account, int] = defaultdict(int)
        for organization, currency, posted_in, net in ledger(
            self.engine, "organization_id", "currency", "month", "net"
        ):
            if self.until.get(organization, FIRST.first_day) < posted_in <= month.first_day:
                nets[organization, currency] += net
        returned = self.waiting_to_return()
        carried = {account for account, amount in self.carried.items() if amount}
        rows = []
        for account in sorted(nets.keys() | returned.keys() | carried | self.brought.keys()):
            if account[0] in self.parked:
                continue
            opening = self.carried[account] if account in self.carried else self.brought.pop(account, 0)
            due = opening + nets[account] + returned.get(account, 0)
            payable = due if due >= max(self.minimum[account[1]], 1) else 0
            self.carried[account] = due - payable
            rows.append((*account, opening, nets[account], returned.get(account, 0), payable, due - payable))
        self.until |= dict.fromkeys(self.zones.keys() - self.parked, month.first_day)
        return rows

    def waiting_to_return(self) -> dict[Account, int]:
        with self.engine.connect() as connection:
            rows = connection.execute(
                text("""
                    SELECT organization_id, currency, sum(amount) FROM payout
                    WHERE state IN ('REJECTED', 'RETURNED') AND returned_month IS NULL GROUP BY 1, 2
                """)
            )
            return {(row[0], row[1]): int(row[2]) for row in rows}

    def answer_payouts(self) -> None:
        """The provider answers some that wait, and sends back some that it had confirmed."""
        for before, after in (("REQUESTED", "CONFIRMED"), ("REQUESTED", "REJECTED"), ("CONFIRMED", "RETURNED")):
            execute(
                self.engine,
                """
                UPDATE payout SET state = :after, answered_at = clock_timestamp()
                WHERE state = :before AND hashint8(id + CAST(:salt AS bigint)) % 4 = 0
                """,
                before=before, after=after, salt=self.random.randrange(10**6),
            )  # fmt: skip

    def park_or_unpark(self) -> None:
        organization = self.random.choice(list(self.zones))
        if organization in self.parked:
            unpark(self.engine, self.names[organization], "ana")
        else:
            park(self.engine, self.names[organization], "asked to", "ana", FIRST)
        self.parked ^= {organization}

    def all_that_is_closed(self) -> list[tuple[Any, ...]]:
        """Every entry and balance of closed months, to the byte."""
        with self.engine.connect() as connection:
            rows = connection.execute(
                text("""
                    SELECT month, CAST(row AS text) FROM (
                        SELECT month, CAST(ledger_entry AS text) AS row FROM ledger_entry
                        UNION ALL
                        SELECT month, CAST(organization_balance AS text) FROM organization_balance
                    ) AS kept JOIN settlement_period USING (month)
                    WHERE state = 'CLOSED' ORDER BY 1, 2
                """)
            )
            return [tuple(row) for row in rows]

    def assert_frozen(self) -> None:
        assert self.all_that_is_closed() == self.frozen
        assert breaches(self.engine) == []

    def come_to_rest(self) -> None:
        """Everybody is unparked, the provider is silent, and all months are settled and closed."""
        for organization in sorted(self.parked):
            unpark(self.engine, self.names[organization], "ana")
        self.parked.clear()
        while True:
            with self.engine.connect() as connection:
                month = next_to_close(connection, NOW, FIRST)
            assert month is not None
            if month > AFTER:
                return
            settle(self.engine, month)
            self.close(month)

    def expected(self) -> dict[Key, tuple[int, ...]]:
        """What all movements come to, by the oracle."""
        return without_zeros(amounts(self.movements, self.zones))


def assert_no_cent_is_lost(platform: Platform) -> None:
    """What came in is what was paid out for good, and what is still carried."""
    with platform.engine.connect() as connection:
        rows = connection.execute(
            text("""
                WITH account AS (
                    SELECT organization_id, currency, sum(net) AS came_in, 0 AS went_out FROM ledger_entry GROUP BY 1, 2
                    UNION ALL
                    SELECT organization_id, currency, amount, 0 FROM opening_balance
                    UNION ALL
                    SELECT organization_id, currency, 0, amount FROM payout WHERE returned_month IS NULL
                    UNION ALL
                    SELECT * FROM (
                        SELECT DISTINCT ON (organization_id, currency) organization_id, currency, 0, closing
                        FROM organization_balance ORDER BY organization_id, currency, month DESC
                    ) AS carried
                )
                SELECT organization_id, currency, sum(came_in), sum(went_out) FROM account GROUP BY 1, 2
                HAVING sum(came_in) <> sum(went_out)
            """)
        )
        assert [tuple(row) for row in rows] == []
