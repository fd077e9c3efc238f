"""Histories of a platform at work: business, people, crashes and clocks, at random, on a real database.

A `Platform` lives through a history step by step, keeps what it did in `story`, and remembers of its business what the
oracle needs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
from sqlalchemy import Connection, Engine, text

from tests.support.folders import Story, write_folder
from tests.support.oracle import Business, Movement
from tests.support.provider_by_hand import Provider
from tests.support.rows import add_organization, instant
from tests.support.sql_statements import execute
from tests.support.unattended import REFUSALS, Schedules, Work, doomed
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.importing import import_folder, undo_import
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.actions import Selection, hold, reject, release, return_payout
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.settings import Settings, settings
from ticketflow_orch.settlement import settle_month
from ticketflow_orch.statements.storage import Place

ZONES = ("Pacific/Kiritimati", "Europe/Madrid", "Pacific/Pago_Pago")
CURRENCIES = ("EUR", "JPY", "KWD")
UNKNOWN_ZONE = "Mars/Olympus"
FIRST = Month(2025, 8)
BEGINNING = instant("2025-10-01T12:00")
POISON = 2**62


class Sales(Business):
    """Business whose movements lie around `now`, most of them within the last days, some late."""

    now = BEGINNING

    def _instant(self) -> datetime:
        back = self._random.choice([3, 3, 3, 40, 100]) * self._random.random()
        moment = max(self.now - timedelta(days=back), BEGINNING - timedelta(days=12))
        return moment.astimezone(UTC).replace(microsecond=self._random.choice([0, 1, 999_999]))

    def forget(self, ids: set[int]) -> None:
        """Those are gone, nobody reverses them any more."""
        for known in (self._captures, self._chargebacks, self._voidable):
            known[:] = [movement for movement in known if movement.id not in ids]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import brought: its id, and what goes with it when it is undone."""

    id: int
    movements: frozenset[int]
    organizations: frozenset[str]
    opening: frozenset[tuple[str, str]]


class Platform:
    """A platform that lives through a history made of `seed`; `folder` takes its imports and its statements."""

    def __init__(self, engine: Engine, seed: int, folder: Path, instance: dg.DagsterInstance) -> None:
        self.engine, self.seed, self.random, self.folder = engine, seed, Random(seed), folder
        self.now = BEGINNING
        self.story: list[str] = []
        self.schedules = Schedules(engine, instance, Place.at(str(folder / "statements")), self.story.append)
        self.provider = Provider(self.random)
        self.names: dict[int, str] = {}
        self.parked: set[str] = set()
        self.movements: dict[int, Movement] = {}
        self.opening: dict[tuple[str, str], int] = {}
        self.imported: list[Imported] = []
        self.poisoned: dict[str, list[int]] = {}
        self.sellers: list[int] = []
        self.sales = Sales(self.random, self.sellers, since=BEGINNING, until=BEGINNING + timedelta(days=1))
        self._folders, self._halls = itertools.count(), itertools.count(1)
        for _ in range(5):
            self.join(joined_on=date(2020, 1, 1))

    def live(self, until: datetime, steps: int) -> None:
        """Live from now to `until` in so many steps."""
        pace = (until - self.now) / steps
        for number in range(steps):
            # Threads draw in any order; the next step begins as it would have.
            self.random.seed(f"{self.seed}/{number}")
            self.pass_days(self.now + pace * 2 * self.random.random())
            if self.now >= until:
                break
            self.step()

    def pass_days(self, until: datetime) -> None:
        """Time goes by; on some days the schedules do their work, on some their runs are disturbed, some are missed."""
        while self.now.date() < until.date():
            self.now += timedelta(days=1)
            if self.random.random() < 0.35:
                self.schedules.day(self.now.date(), self._perhaps_disturbed)
                self.provider.answer(self.engine, undecided=0.4)
        self.now = max(self.now, until)
        self.sales.now = self.now

    def rest(self, first: date, days: int = 10) -> None:
        """Nothing happens but what the schedules do, and what the provider answers."""
        for number in range(days):
            self.now = instant(f"{first + timedelta(days=number)}T12:00")
            self.schedules.day(self.now.date())
            self.provider.answer(self.engine)

    def step(self) -> None:
        """Something happens."""
        does: Callable[[], None] = self.random.choices(
            [self.sell, self.bring, self.undo, self.join_late, self.move_left_on, self.poison, self.void_poison,
             self.park_or_unpark, self.owe_from_elsewhere, self.settle_any, self.close_any, self.settle_disturbed,
             self.close_disturbed, self.import_killed, self.still_writing, self.give_up, self.at_once,
             self.return_one, self.hold_or_release, self.join_from_mars, self.correct_mars],
            [14, 6, 5, 3, 2, 1, 1, 3, 2, 5, 4, 5, 4, 2, 2, 1, 3, 2, 2, 1, 1],
        )[0]  # fmt: skip
        self.story.append(f"{self.now:%m-%d %H:%M} {does.__name__}")
        try:
            does()
        except REFUSALS as refusal:
            self.story.append(f"  refused: {str(refusal)[:300]}")

    def say(self, said: str) -> None:
        self.story.append(f"  {said}")

    # Business.

    def join(self, **values: Any) -> int:
        number = next(self._halls)
        name = f"hall-{number}"
        defaults = {"timezone": ZONES[number % 3], "currency": CURRENCIES[number % 2]}
        organization = add_organization(
            self.engine, external_ref=name, contact_email=f"{name}@example.com", **defaults | values
        )
        self.names[organization] = name
        self.sellers.append(organization)
        return organization

    def join_late(self) -> None:
        """A contract that is entered late, or early."""
        joined = self.now.date() - timedelta(days=self.random.randint(-20, 90))
        left = joined + timedelta(days=self.random.randint(0, 60)) if self.random.random() < 0.3 else None
        self.say(f"joined {self.join(joined_on=joined, left_on=left)} on {joined}, left {left}")

    def join_from_mars(self) -> None:
        organization = self.join(timezone=UNKNOWN_ZONE, joined_on=self.now.date() - timedelta(days=40))
        self.say(f"joined {organization}")

    def correct_mars(self) -> None:
        """Somebody sees that there is no such zone."""
        corrected = execute(
            self.engine, "UPDATE organization SET timezone = :zone WHERE timezone = :unknown",
            zone=self.random.choice(ZONES), unknown=UNKNOWN_ZONE,
        )  # fmt: skip
        self.say(f"{corrected} corrected")

    def move_left_on(self) -> None:
        organization = self.random.choice(self.sellers)
        left = self.random.choice([None, self.now.date() - timedelta(days=self.random.randint(-20, 100))])
        joined = date(2020, 1, 1) if left is None else min(date(2025, 9, 10), left)
        execute(
            self.engine, "UPDATE organization SET joined_on = :joined, left_on = :left WHERE id = :id",
            id=organization, joined=joined, left=left,
        )  # fmt: skip
        self.say(f"{organization} left on {left}")

    def sell(self) -> None:
        """Business as usual: a few movements in one transaction."""
        made = self.sales.movements(self.random.choice([1, 3, 8]))
        with self.engine.begin() as connection:
            for movement in made:
                write(connection, movement)
        self._remember(made)

    def poison(self) -> None:
        """Somebody enters amounts that no ledger can hold the sum of."""
        organization = self.random.choice(self.sellers)
        template = replace(self.sales.movements(1)[0], kind="CAPTURE", is_void=False, reverses_id=None)
        self.sales.forget({template.id})
        made = [
            replace(template, id=template.id * 1000 + n, organization_id=organization, amount=POISON, currency="EUR",
                    commission_rate_bps=0, commission_tax_bps=0)
            for n in range(3)
        ]  # fmt: skip
        with self.engine.begin() as connection:
            for movement in made:
                write(connection, movement)
        self._remember(made)
        self.poisoned.setdefault(self.names[organization], []).extend(movement.id for movement in made)
        self.say(f"{self.names[organization]} at {template.occurred_at:%Y-%m-%d}")

    def void_poison(self, name: str | None = None) -> None:
        """Somebody sees it and corrects it."""
        for poisoned in [name] if name else list(self.poisoned):
            voids = [
                replace(self.movements[number], id=-number, amount=-POISON, is_void=True, reverses_id=number)
                for number in self.poisoned.pop(poisoned, ())
            ]
            with self.engine.begin() as connection:
                for movement in voids:
                    write(connection, movement)
            self._remember(voids)

    def owe_from_elsewhere(self) -> None:
        """An organization says what it was owed before it came."""
        organization = self.random.choice(self.sellers)
        key = self.names[organization], "EUR"
        amount = self.random.choice([-1, 1]) * self.random.randint(1, 10_000)
        if key not in self.opening:
            self.opening[key] = amount
            execute(
                self.engine, "INSERT INTO opening_balance (organization_id, currency, amount) VALUES (:id, 'EUR', :a)",
                id=organization, a=amount,
            )  # fmt: skip
            self.say(f"{key[0]} {amount}")

    # Imports.

    def bring(self, engine: Engine | None = None) -> None:
        """A folder of movements comes, some with new organizations and what those are owed."""
        newcomers = [f"brought-{next(self._folders)}" for _ in range(self.random.choice([0, 0, 1, 2]))]
        organizations = [
            {
                "external_ref": name, "name": name, "timezone": self.random.choice(ZONES), "currency": "EUR",
                "commission_rate_bps": "1000", "commission_tax_bps": "2000",
                "joined_on": str(self.now.date() - timedelta(days=self.random.randint(0, 70))), "left_on": "",
                "contact_email": "", "locale": "",
            }
            for name in newcomers
        ]  # fmt: skip
        opening = [{"organization_ref": name, "currency": "EUR", "amount": "5000"} for name in newcomers[:1]]
        made = self.sales.movements(self.random.choice([1, 4]))
        ids = frozenset(movement.id for movement in made)
        files: Story = {
            "organizations": organizations,
            "money_movements": [self._cells(movement) for movement in made],
            "opening_balances": opening,
        }
        folder = write_folder(self.folder / f"import-{next(self._folders)}", files)
        brought = frozenset((name, "EUR") for name in newcomers[:1])
        try:
            import_folder(engine or self.engine, folder, FIRST)
        finally:
            # It may be there although the process died.
            number = self._import("id", source=str(folder.resolve()))
            if number is None:
                self.sales.forget(set(ids))
            else:
                self._came(Imported(number, ids, frozenset(newcomers), brought), made)

    def _came(self, imported: Imported, made: Sequence[Movement]) -> None:
        self.imported.append(imported)
        self._remember(made)
        self.opening |= dict.fromkeys(imported.opening, 5000)
        with self.engine.connect() as connection:
            for row in connection.execute(
                text("SELECT id, external_ref FROM organization WHERE import_id = :id"), {"id": imported.id}
            ):
                self.names[row.id] = row.external_ref
                self.sellers.append(row.id)
        self.say(f"import {imported.id}: {len(made)} movements, {', '.join(imported.organizations) or 'nobody new'}")

    def _import(self, column: str, **wanted: Any) -> Any:
        where = " AND ".join(f"{name} = :{name}" for name in wanted)
        with self.engine.connect() as connection:
            query = text(f"SELECT {column} FROM data_import WHERE {where}")
            return connection.execute(query, wanted).scalar_one_or_none()

    def undo(self, engine: Engine | None = None) -> None:
        """Somebody takes an import back."""
        if not self.imported:
            return
        gone = self.random.choice(self.imported)
        try:
            undo_import(engine or self.engine, gone.id)
        finally:
            if self._import("undone_at", id=gone.id) is not None:
                self._went(gone)

    def _went(self, gone: Imported) -> None:
        self.imported.remove(gone)
        self.sales.forget(set(gone.movements))
        for number in gone.movements:
            del self.movements[number]
        for key in gone.opening:
            del self.opening[key]
        for organization, name in list(self.names.items()):
            if name in gone.organizations:
                del self.names[organization]
                self.sellers.remove(organization)
        self.say(f"import {gone.id} is gone")

    def import_killed(self) -> None:
        """An import, or an undo, dies at some statement; it has happened or it has not."""
        does = self.random.choice([self.bring, self.undo])
        with doomed(self.engine, self.random.randint(1, 60)) as engine:
            does(engine)

    # People and crashes.

    def park_or_unpark(self) -> None:
        name = self.random.choice(list(self.names.values()))
        if name in self.parked:
            unpark(self.engine, name, "ana")
        else:
            park(self.engine, name, "asked to", "ana", FIRST)
        self.parked ^= {name}
        self.say(name)

    def any_month(self) -> Month:
        """Mostly one that is over, now and then one that nobody should settle."""
        months = list(months_between(FIRST, Month.of_instant(self.now, "UTC")))
        return self.random.choices(months, [1, *[3] * (len(months) - 1)])[0]

    def settle_any(self, engine: Engine | None = None, **options: Any) -> None:
        """Somebody settles a month, be it the wrong one."""
        month = self.any_month()
        options.setdefault("full", self.random.random() < 0.2)
        self.say(f"{month} {options}")
        self.schedules.settle(engine or self.engine, month, self.now, workers=1, **options)

    def close_any(self, engine: Engine | None = None) -> None:
        """Somebody closes a month, be it the wrong one."""
        month = self.any_month()
        self.say(str(month))
        self.schedules.close(engine or self.engine, month, self.now)

    def settle_disturbed(self) -> None:
        """A run by hand is killed, or terminated in the UI."""
        if self.random.random() < 0.3:
            stop = threading.Event()
            stop.set()
            settle_month(
                self.engine, self.any_month(), now=self.now, first_month=FIRST, run_id="run", settled_by="ana",
                stop=stop,
            )  # fmt: skip
        else:
            with doomed(self.engine, self.random.randint(1, 70)) as engine:
                self.settle_any(engine)

    def close_disturbed(self) -> None:
        with doomed(self.engine, self.random.randint(1, 80)) as engine:
            self.close_any(engine)

    def still_writing(self) -> None:
        """A long writer is open while a month is settled; it commits later, or not at all."""
        [movement] = self.sales.movements(1)
        with self.engine.connect() as writer:
            write(writer, movement)
            try:
                self.settle_any(writer_wait=0.01)
            finally:
                if self.random.random() < 0.5:
                    writer.commit()
                    self._remember([movement])
                else:
                    writer.rollback()
                    self.sales.forget({movement.id})

    def give_up(self) -> None:
        """A run that may park nobody."""
        self.settle_any(parked_limit=0)

    def at_once(self) -> None:
        """Two people, or two daemons, do the same or something else at the same moment."""
        works = self.random.choice(
            [(self.settle_any, self.settle_any), (self.settle_any, self.close_any), (self.close_any, self.close_any),
             (self.settle_any, self.bring), (self.close_any, self.undo), (self.close_any, self.owe_from_elsewhere),
             (self.settle_any, self.undo), (self.close_any, self.sell)]
        )  # fmt: skip

        def work(does: Callable[[], None]) -> None:
            try:
                does()
            except REFUSALS as refusal:
                self.say(f"refused: {str(refusal)[:300]}")

        with ThreadPoolExecutor(len(works)) as pool:
            for future in [pool.submit(work, does) for does in works]:
                future.result()

    def return_one(self) -> None:
        reference = self._some_payout("CONFIRMED")
        if reference:
            with transaction(self.engine) as connection:
                return_payout(connection, reference, "account closed", "ana")
            self.provider.took_back.add(reference)

    def hold_or_release(self) -> None:
        held, requested = self._some_payout("HELD"), self._some_payout("REQUESTED")
        with transaction(self.engine) as connection:
            if held and self.random.random() < 0.3:
                reject(connection, held, "not ours", "ana")
            elif requested:
                hold(connection, requested, "asked to", "ana")
        if held and self.random.random() < 0.5:
            release(self.engine, Selection(reference=held), "ana")

    def _some_payout(self, state: str) -> str | None:
        with self.engine.connect() as connection:
            found = connection.execute(
                text("SELECT public_id FROM payout WHERE state = :state ORDER BY id"), {"state": state}
            ).scalars()
            references = list(map(str, found))
        return self.random.choice(references) if references else None

    def _perhaps_disturbed(self, work: Work) -> None:
        if self.random.random() < 0.2:
            with doomed(self.engine, self.random.randint(1, 80)) as engine:
                work(engine)
        else:
            work(self.engine)

    def _remember(self, made: Sequence[Movement]) -> None:
        self.movements |= {movement.id: movement for movement in made}

    def _cells(self, movement: Movement) -> dict[str, str]:
        return {
            "external_ref": ref(movement.id), "organization_ref": self.names[movement.organization_id],
            "reservation_ref": "", "kind": movement.kind, "currency": movement.currency,
            "amount": str(movement.amount), "commission_rate_bps": str(movement.commission_rate_bps),
            "commission_tax_bps": str(movement.commission_tax_bps),
            "reverses_ref": ref(movement.reverses_id) if movement.reverses_id else "",
            "occurred_at": movement.occurred_at.isoformat(), "is_void": str(movement.is_void).lower(),
            "reason": "as agreed" if movement.kind in {"FEE", "MANUAL"} else "",
        }  # fmt: skip


def configured(now: datetime) -> Settings:
    """The settings as they are, with the business clock at `now`."""
    return settings().model_copy(update={"fixed_clock": now})


def ref(number: int | None) -> str:
    """The external reference of a movement of the history."""
    return f"movement-{number}"


def write(connection: Connection, movement: Movement) -> None:
    """Write the movement as the application would; the database draws its id."""
    connection.execute(
        text("""
            INSERT INTO money_movement (external_ref, organization_id, kind, is_void, reverses_id, currency,
                amount, commission_rate_bps, commission_tax_bps, reason, occurred_at)
            VALUES (:ref, :organization_id, CAST(:kind AS text), :is_void,
                (SELECT id FROM money_movement WHERE external_ref = :reverses), :currency,
                :amount, :commission_rate_bps, :commission_tax_bps,
                CASE WHEN CAST(:kind AS text) IN ('FEE', 'MANUAL') THEN 'as agreed' END, :occurred_at)
        """),
        asdict(movement) | {"ref": ref(movement.id), "reverses": ref(movement.reverses_id)},
    )
