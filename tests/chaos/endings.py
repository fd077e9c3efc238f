"""How a history ends: what is not finished, what differs from the oracle, and what health says and people then do."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, text

from tests.chaos.histories import FIRST, Platform, configured
from tests.support.audited import broken
from tests.support.oracle import AMOUNTS, amounts, posted, without_zeros
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.snapshot import read_situation
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.actions import Selection, confirm, release
from ticketflow_orch.payouts.paid_from import first_paid_month
from ticketflow_orch.payouts.parking import unpark
from ticketflow_orch.periods.state import closed_months
from ticketflow_orch.reports.board import read_board
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.due import months_over
from ticketflow_orch.statements.invariants import issued_months, statements_that_do_not_add_up

# Organization and currency.
Account = tuple[int, str]
# For so long nothing has happened when somebody looks; the database's clock stood still meanwhile.
_LOOKED_AFTER = timedelta(days=4)


class Ending:
    """The end of what `platform` lived through."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.engine = platform, platform.engine
        self._remedies: tuple[tuple[str, Callable[[re.Match[str]], None]], ...] = (
            (r"`ticketflow unpark (\S+)`", self._unpark),
            (r"organization (\S+) .*out of range", self._void_poison),
            (r"organization (\S+) .*unknown to tzdata", self._correct_zone),
            (r"given up: .* and (\S+) fails too .*out of range", self._void_poison),
            (r"given up: .* such as (\S+) .*unknown to tzdata", self._correct_zone),
            (r"`ticketflow payouts resolve`", self._resolve),
            (r"`ticketflow payouts release", self._release),
            (r"`ticketflow settle (\S+)` begins the books", self._begin),
        )

    def remove_obstacles(self) -> int:
        """Do what health says is to be done; returns how many of its lines somebody could follow.

        Whatever stands still must be named.
        """
        lines = list(self.health())
        stuck = [*self.not_through(), *self.not_in_order()]
        followed = sum(self._follow(line) for line in lines)
        assert followed or not stuck, f"nothing says how to go on: {stuck}\n{self.history()}"
        return followed

    def health(self) -> Iterator[str]:
        """What health says, some days after all came to rest."""
        now = self.platform.now
        situation = read_situation(self.engine, configured(now))
        later = replace(situation, database_now=situation.database_now + _LOOKED_AFTER)
        yield from problems(later, settings().business_timezone, timedelta(days=30))

    def unfinished(self) -> list[str]:
        """What is not as it must be when all is over."""
        return [*self.not_through(), *self.not_in_order()]

    def not_through(self) -> Iterator[str]:
        """The months that are over and not closed, paid and with their statements issued."""
        with self.engine.connect() as connection:
            pays_from = first_paid_month(connection)
            rows = {
                row.month: row for row in connection.execute(text("SELECT * FROM settlement_period ORDER BY month"))
            }
            closed = closed_months(connection)
            for month in months_over(connection, self.platform.now, FIRST):
                row = rows.get(month.first_day)
                if row is None and closed and month < closed[0]:
                    # What came late for it is in the first month that was not closed.
                    continue
                if row is None or row.state != "CLOSED":
                    yield f"{month} is {row and row.state}"
                    continue
                if pays_from is not None and month >= pays_from and row.paid_at is None:
                    yield f"{month} is not paid"
                if row.stated_at is None:
                    yield f"{month} has no statements"

    def not_in_order(self) -> Iterator[str]:
        """What the audit of all months has to say, and what waits for somebody."""
        found = broken(self.engine, first_month=FIRST)
        yield from (f"{name}: {line}" for name, lines in found.items() for line in lines)
        with self.engine.connect() as connection:
            for month in issued_months(connection):
                for one in statements_that_do_not_add_up(connection, month, self.platform.schedules.place).examples:
                    yield f"statements of {month}: {one.organization} {one.currency} {one.what}"
            for row in connection.execute(text("SELECT * FROM parked_organization WHERE resolved_at IS NULL")):
                yield f"{self.platform.names[row.organization_id]} is parked in {row.month}: {row.error or row.reason}"
            for row in connection.execute(text("SELECT * FROM settlement_pass WHERE state = 'RUNNING'")):
                yield f"a pass of {row.month} is running"

    def differences(self) -> list[str]:
        """Where the books are not what the oracle makes of all movements, or what was paid is not what they say."""
        platform = self.platform
        owed: dict[Account, int] = defaultdict(int)
        with self.engine.connect() as connection:
            zones = {row.id: row.timezone for row in connection.execute(text("SELECT id, timezone FROM organization"))}
            known = set(connection.execute(text("SELECT external_ref FROM money_movement")).scalars())
            balances: dict[Account, int] = {
                (row.organization_id, row.currency): row.closing
                for row in connection.execute(
                    text("""
                        SELECT DISTINCT ON (organization_id, currency) organization_id, currency, closing
                        FROM organization_balance ORDER BY organization_id, currency, month DESC
                    """)
                )
            }
            payable = connection.execute(text("SELECT organization_id, currency, payable FROM organization_balance"))
            for row in payable:
                owed[row.organization_id, row.currency] -= row.payable
            payouts = connection.execute(text("SELECT * FROM payout")).all()
            pays_from = first_paid_month(connection)
        wanted = without_zeros(amounts(platform.movements.values(), zones))
        found = without_zeros(posted(self.engine))
        said = [
            f"{platform.names[key[0]]} {key[1:]}: {found.get(key)} instead of {wanted.get(key)}"
            for key in sorted(wanted.keys() | found.keys())
            if wanted.get(key) != found.get(key)
        ]
        if len(known) != len(platform.movements):
            said.append(f"{len(known)} movements instead of {len(platform.movements)}")
        for (organization, month, currency), sums in wanted.items():
            if pays_from is not None and month < str(pays_from):
                continue
            owed[organization, currency] += sums[AMOUNTS.index("net")]
        ids = {name: number for number, name in platform.names.items()}
        for (name, currency), amount in platform.opening.items():
            owed[ids[name], currency] += amount
        for row in payouts:
            if row.returned_month is not None:
                owed[row.organization_id, row.currency] += row.amount
        said += [
            f"{account} is owed {owed.get(account, 0)}, carried is {balances.get(account, 0)}"
            for account in sorted(owed.keys() | balances.keys())
            if owed.get(account, 0) != balances.get(account, 0)
        ]
        return [*said, *self._wrongly_paid(payouts)]

    def _wrongly_paid(self, payouts: Sequence[Row[Any]]) -> Iterator[str]:
        ours = {
            str(row.public_id): (self.platform.names[row.organization_id], row.currency, row.amount)
            for row in payouts
            if row.state in {"CONFIRMED", "RETURNED"} and row.decided_by != "ana settled it"
        }
        if ours != self.platform.provider.paid:
            yield f"the provider paid {self.platform.provider.paid}, we say {ours}"

    def history(self) -> str:
        """The whole history, for people, with what the board and health say now."""
        with self.engine.connect() as connection:
            settings_ = f"payouts from {first_paid_month(connection)}, parked limit {settings().parked_limit}"
            board = read_board(connection, self.platform.now, FIRST)
        return "\n".join(
            [
                f"CHAOS_SEED={self.platform.seed} LIVENESS_HISTORIES=1; {settings_}",
                *self.platform.story,
                *(f"board: {one.month} {one.state}: {one.next_step}" for one in board.months),
                *(f"health: {line}" for line in self.health()),
            ]
        )

    def _follow(self, line: str) -> bool:
        for pattern, remedy in self._remedies:
            found = re.search(pattern, line)
            if found is not None:
                self.platform.story.append(f"health: {line}")
                remedy(found)
                return True
        return False

    def _unpark(self, found: re.Match[str]) -> None:
        unpark(self.engine, found[1], "ana")
        self.platform.parked.discard(found[1])

    def _begin(self, found: re.Match[str]) -> None:
        self.platform.schedules.settle(self.engine, Month.parse(found[1]), self.platform.now)

    def _void_poison(self, found: re.Match[str]) -> None:
        self.platform.void_poison(found[1])

    def _correct_zone(self, found: re.Match[str]) -> None:
        self.platform.correct_mars()

    def _resolve(self, _: re.Match[str]) -> None:
        with transaction(self.engine) as connection:
            for reference in connection.execute(
                text("SELECT public_id FROM payout WHERE state = 'IN_DOUBT'")
            ).scalars():
                confirm(connection, str(reference), "ana settled it", now=self.platform.now)

    def _release(self, _: re.Match[str]) -> None:
        with self.engine.connect() as connection:
            held = connection.execute(text("SELECT public_id FROM payout WHERE state = 'HELD' ORDER BY id")).scalars()
            references = list(map(str, held))
        for reference in references:
            release(self.engine, Selection(reference=reference), "ana")
