"""What is paid is what is owed since the first paid month, in whatever order sales, closings and decisions come."""

from __future__ import annotations

import itertools
import os
from datetime import date
from random import Random

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    APRIL,
    FEBRUARY,
    JANUARY,
    MARCH,
    add_opening_balance,
    breaches,
    close,
    set_minimum,
    settle_and_close,
)
from tests.support.history import OPENING, books_of, brought, nets, owed_since
from tests.support.oracle import Business, record
from tests.support.payable import pay_from, request, rows
from tests.support.rows import add_organization, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.paid_from import set_paid_from
from ticketflow_orch.payouts.request import payouts_due_months

SEED = int(os.environ["CHAOS_SEED"])

EXAMPLES = int(os.environ.get("CHAOS_EXAMPLES", "3"))

STEPS = int(os.environ.get("CHAOS_STEPS", "40"))

# --- Whatever happens in whatever order
MONTHS = tuple(months_between(Month(2025, 11), APRIL))

DECISIONS = (None, Month(2025, 12), JANUARY, FEBRUARY, MARCH)


@pytest.mark.parametrize("seed", range(SEED, SEED + EXAMPLES))
def test_what_is_paid_is_what_is_owed_since_then_in_whatever_order_things_come(engine: Engine, seed: int) -> None:
    life = Life(engine, Random(seed))
    for _ in range(STEPS):
        life.step()
        assert breaches(engine) == [], f"CHAOS_SEED={seed}"
    life.come_to_rest()
    assert breaches(engine) == [], f"CHAOS_SEED={seed}"
    found = books_of(engine)
    for account in nets(engine).keys() | brought(engine).keys():
        first = life.paid_from(account[0])
        owed, history = owed_since(engine, first, account)
        paid, carried, settled = found[account]
        if first is None:
            # What came off while it was paid stays off until it is paid again.
            assert paid + carried + settled == owed, f"CHAOS_SEED={seed}"
        else:
            assert (paid + carried, settled) == (owed, history), f"CHAOS_SEED={seed}"


class Life:
    """Organizations that come with their history, and people who change their mind about from when on they are paid."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self.engine, self.random = engine, random
        self.names = [f"hall {number}" for number in range(4)]
        self.ids = [add_organization(engine, external_ref=name, joined_on=date(2026, 6, 1)) for name in self.names]
        set_minimum(engine, 3_000)
        pay_from(engine, random.choice(DECISIONS))
        self.business = Business(
            random, self.ids, since=instant("2025-11-01T00:00"), until=instant("2026-05-01T00:00"),
            ids=itertools.count(1),
        )  # fmt: skip
        self.sell()

    def step(self) -> None:
        does = [self.sell, self.close_one, self.decide, self.answer, self.bring]
        self.random.choices(does, [5, 4, 5, 3, 1])[0]()

    def sell(self) -> None:
        record(self.engine, self.business.movements(self.random.choice([1, 5, 30])))

    def bring(self) -> None:
        organization = self.random.choice(self.ids)
        there = rows(self.engine, "SELECT FROM opening_balance WHERE organization_id = :id", id=organization)
        if not there:
            add_opening_balance(self.engine, organization, self.random.choice([-OPENING, OPENING]))

    def close_one(self) -> None:
        month = self.turn()
        if month <= MONTHS[-1]:
            settle(self.engine, month)
            close(self.engine, month, chunk_size=self.random.choice([1, 3, 100]))
            if self.random.random() < 0.7:
                self.pay()

    def turn(self) -> Month:
        [[last]] = rows(self.engine, "SELECT max(month) FROM settlement_period WHERE state = 'CLOSED'")
        return MONTHS[0] if last is None else Month.of_day(last).next()

    def pay(self) -> None:
        with self.engine.connect() as connection:
            due = payouts_due_months(connection)
        for month in due:
            request(self.engine, month)

    def decide(self) -> None:
        name = self.random.choice([None, None, *self.names])
        try:
            set_paid_from(self.engine, self.random.choice(DECISIONS), "ana", organization=name, confirmed=True)
        except TicketflowError:
            return

    def answer(self) -> None:
        for before, after in (("REQUESTED", "CONFIRMED"), ("REQUESTED", "REJECTED"), ("CONFIRMED", "RETURNED")):
            execute(
                self.engine,
                """
                UPDATE payout SET state = :after, answered_at = clock_timestamp()
                WHERE state = :before AND hashint8(id + CAST(:salt AS bigint)) % 4 = 0
                """,
                before=before, after=after, salt=self.random.randrange(10**6),
            )  # fmt: skip

    def come_to_rest(self) -> None:
        self.pay()
        while (month := self.turn()) <= MONTHS[-1].next():
            settle_and_close(self.engine, month)
            self.pay()

    def paid_from(self, organization: int) -> Month | None:
        [[day]] = rows(
            self.engine,
            """
            SELECT coalesce(payouts_from, (SELECT CAST(payouts_from AS date) FROM installation)) FROM organization
            WHERE id = :id
            """,
            id=organization,
        )
        return None if day is None else Month.of_day(day)
