"""Clocks that are wrong, of the host and of the database: every unit is settled, closed and paid once, or refused.

The database's clock is libfaketime's, which the server alone is started with; the host's is that of the modules that
ask for it, and the business time that a run is given.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.conftest import FAKETIME, TEMPLATE, fresh_database, make_template, run_sql
from tests.support.books import FEBRUARY, FIRST, JANUARY, MARCH, balances, breaches, close, settle_and_close, state_of
from tests.support.oracle import expected, posted, without_zeros
from tests.support.payable import request
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import NOW, settle
from ticketflow_orch.closing import IncompleteClosingError
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import freeze
from ticketflow_orch.db.engine import clocks, connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.periods.zones import require_over
from ticketflow_orch.settlement import invariants
from ticketflow_orch.settlement.due import late_months
from ticketflow_orch.statements import StatementOptions, issue_statements
from ticketflow_orch.statements.model import must_add_up
from ticketflow_orch.statements.queries import read_statements
from ticketflow_orch.statements.storage import Place

pytestmark = pytest.mark.skipif(FAKETIME is None, reason="no libfaketime here: apt-get install faketime")

HOUR, MONTH = 3600, 30 * 86_400
STEPS = {"an hour back": -HOUR, "5 s back": -5, "5 s ahead": 5, "a month ahead": MONTH}
# What a clock that is wrong by more than a minute is refused with.
REFUSED = re.compile(r"This host's clock is \d+ s (ahead of|behind) the database's, and more than 60 s settle nothing;")


class Clocks:
    """By how many seconds the database's clock and the host's are wrong."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.host = 0
        self.set_database(0)

    def set_database(self, seconds: int) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{seconds:+d}\n")
        draft.chmod(0o644)
        draft.replace(self._file)

    def set(self, whose: str, seconds: int) -> None:
        if whose == "host":
            self.host = seconds
        else:
            self.set_database(seconds)

    def right(self) -> None:
        self.host = 0
        self.set_database(0)

    @property
    def now(self) -> datetime:
        """The business time as the host has it."""
        return NOW + timedelta(seconds=self.host)


@pytest.fixture(scope="module")
def clocked(scratch: Path) -> Iterator[tuple[EmbeddedServer, Clocks]]:
    file = scratch / "clock"
    wrong = Clocks(file)
    server = EmbeddedServer(scratch / "clocked", None, {**DEFAULT_PARAMETERS, "fsync": "off", "autovacuum": "off"})
    variables = {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        server.start()
    make_template(server)
    yield server, wrong
    server.remove()


@pytest.fixture
def wrong(clocked: tuple[EmbeddedServer, Clocks], monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    """Both clocks, right until a test says otherwise."""
    _, clocks = clocked
    clocks.right()

    class HostClock:
        @staticmethod
        def now(zone: tzinfo) -> datetime:
            return datetime.now(zone) + timedelta(seconds=clocks.host)

    monkeypatch.setattr("ticketflow_orch.db.engine.datetime", HostClock)
    yield clocks
    clocks.right()


@pytest.fixture
def world(clocked: tuple[EmbeddedServer, Clocks], wrong: Clocks) -> Iterator[Engine]:
    """An engine on a fresh database of the server whose clock can be wrong."""
    server, _ = clocked
    with fresh_database(server) as url:
        engine = connect_engine(url, f"pytest {os.getpid()}", connections=20)
        yield engine
        engine.dispose()


def net(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT coalesce(sum(net), 0) FROM ledger_entry")).scalar_one())


def payable(engine: Engine) -> dict[int, int]:
    """What the balances of each organization say it is to be paid."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT organization_id, sum(payable) FROM organization_balance GROUP BY 1 HAVING sum(payable) > 0")
        )
        return {row[0]: int(row[1]) for row in rows}


def paid(engine: Engine) -> dict[int, int]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT organization_id, sum(amount) FROM payout GROUP BY 1"))
        return {row[0]: int(row[1]) for row in rows}


def assert_every_unit_is_settled_once(engine: Engine) -> None:
    assert without_zeros(posted(engine)) == expected(engine)
    assert breaches(engine) == []
    with engine.connect() as connection:
        months = connection.execute(text("SELECT month FROM settlement_period ORDER BY month")).scalars().all()
        for month in map(Month.of_day, months):
            assert invariants.dishonest_organizations(connection, month).examples == ()
            assert invariants.organizations_without_row(connection, month).examples == ()
        assert late_months(connection) == ()


# --- The matrix: whose clock steps, by how much, at which moment, and whether it stays wrong

# The first execution of a statement with these words is the moment; a word in capitals names an action of the chain.
MOMENTS = {
    "before what comes late is recorded": "RECORD LATE",
    "before a settlement": "SETTLE",
    "between cutoff and plan": "INSERT INTO settlement_chunk",
    "between chunks": "UPDATE settlement_chunk SET state = 'DONE'",
    "before the month is settled": "UPDATE settlement_pass SET state = 'DONE'",
    "between settlement and closing": "RECORD BETWEEN",
    "before a closing": "CLOSE",
    "between the freeze and the balances": "INSERT INTO organization_balance",
    "between parking and the end of a closing": "INSERT INTO organization_left_out",
    "before payouts are requested": "PAY",
    "between payouts": "INSERT INTO payout",
    "before statements": "STATE",
}
RECORDINGS = {"RECORD LATE", "RECORD BETWEEN"}
# How many of the eight steps are taken at each moment by each clock; chaos takes all of them.
TAKEN = int(os.environ.get("CLOCK_STEPS", "1"))
SEED = int(os.environ["CHAOS_SEED"])


def cells() -> Iterator[tuple[str, str, str, bool]]:
    """Each clock at each moment, with steps that the seed of the run chooses."""
    random = Random(SEED)
    for whose, moment in itertools.product(("database", "host"), MOMENTS):
        # No clock of a host of ours has a part in what the application records.
        if whose == "database" or MOMENTS[moment] not in RECORDINGS:
            for by, stays in random.sample(list(itertools.product(STEPS, (False, True))), TAKEN):
                yield whose, by, moment, stays


@dataclasses.dataclass
class Chain:
    """A month's whole chain, with movements that come late on every side of every step of it."""

    engine: Engine
    clocks: Clocks
    place: Place
    first: int = 1
    second: int = 2
    hall: int = 3

    def begin(self) -> None:
        """January is closed and paid, with the clocks right."""
        for organization, name in ((self.first, "first"), (self.second, "second"), (self.hall, "hall")):
            add_organization(self.engine, id=organization, external_ref=name)
            self.record("2026-01-10T10:00", organization, 100_000)
            self.record("2026-02-10T10:00", organization, 50_000)
        settle_and_close(self.engine, JANUARY)
        request(self.engine, JANUARY)

    def record(self, occurred_at: str, organization: int, amount: int) -> None:
        add_movement(self.engine, organization, amount, occurred_at)

    def actions(self) -> list[tuple[str, Callable[[], object]]]:
        return [
            ("RECORD LATE", lambda: self.record("2026-01-11T10:00", self.first, 1_003)),
            ("SETTLE", lambda: settle(self.engine, FEBRUARY, self.clocks.now, chunk_size=1, workers=1)),
            ("RECORD BETWEEN", self._record_between),
            ("PARK", lambda: park(self.engine, "hall", "its bank account is disputed", "test", FIRST)),
            ("CLOSE", lambda: close(self.engine, FEBRUARY, self.clocks.now, chunk_size=1)),
            ("UNPARK", lambda: unpark(self.engine, "hall", "test")),
            ("PAY", lambda: request(self.engine, FEBRUARY, now=self.clocks.now, chunk_size=1)),
            ("STATE", lambda: self._state(FEBRUARY)),
            ("RECORD LATE", lambda: self.record("2026-02-12T10:00", self.second, 1_007)),
        ]

    def finish(self) -> None:
        """With the clocks right: the next month takes in what is left."""
        self.record("2026-03-10T10:00", self.hall, 20_000)
        settle_and_close(self.engine, MARCH)
        for month in (JANUARY, FEBRUARY, MARCH):
            request(self.engine, month)
            with self.engine.connect() as connection:
                for statement in read_statements(connection, month, [self.first, self.second, self.hall]):
                    must_add_up(statement)

    def _record_between(self) -> None:
        self.record("2026-01-12T10:00", self.second, 1_009)
        self.record("2026-02-11T10:00", self.first, 1_013)

    def _state(self, month: Month) -> None:
        mail_from = instant("2020-01-01T00:00")
        issue_statements(self.engine, month, StatementOptions(self.place, mail_from=mail_from), now=self.clocks.now)


@pytest.fixture(scope="module")
def january_closed(clocked: tuple[EmbeddedServer, Clocks], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a database in which a chain is begun."""
    server, clocks = clocked
    clocks.right()
    name = "template_january_closed"
    run_sql(server.url(), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    engine = connect_engine(server.url(name), "pytest setup")
    Chain(engine, clocks, Place.at(str(tmp_path_factory.mktemp("place")))).begin()
    engine.dispose()
    return name


@pytest.fixture
def chain(
    clocked: tuple[EmbeddedServer, Clocks], wrong: Clocks, january_closed: str, tmp_path: Path
) -> Iterator[Chain]:
    """A chain of which January is closed."""
    server, _ = clocked
    with fresh_database(server, january_closed) as url:
        engine = connect_engine(url, f"pytest {os.getpid()}", connections=20)
        yield Chain(engine, wrong, Place.at(str(tmp_path)))
        engine.dispose()


WRITTEN = """
    SELECT (SELECT count(*) FROM ledger_entry), (SELECT count(*) FROM organization_balance),
        (SELECT count(*) FROM settlement_pass), (SELECT count(*) FROM payout), (SELECT count(*) FROM statement_mail),
        (SELECT array_agg(state ORDER BY month) FROM settlement_period)
"""


def written(engine: Engine) -> tuple[Any, ...]:
    with engine.connect() as connection:
        return tuple(connection.execute(text(WRITTEN)).one())


@contextmanager
def stepping_at(engine: Engine, words: str, step: Callable[[], None]) -> Iterator[None]:
    """Within the block `step` is taken before the first statement that holds these words."""

    def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if words in statement:
            step()

    event.listen(engine, "before_cursor_execute", look)
    yield
    event.remove(engine, "before_cursor_execute", look)


def refused(action: Callable[[], object]) -> str | None:
    """With which sentence the action is refused, if it is."""
    try:
        action()
    except (TicketflowError, IncompleteClosingError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("whose", "by", "moment", "stays"),
    [
        pytest.param(whose, by, moment, stays, id="-".join((whose, by, moment, "stays" if stays else "undone")))
        for whose, by, moment, stays in cells()
    ],
)
def test_a_clock_that_steps_loses_nothing_and_doubles_nothing(
    chain: Chain, whose: str, by: str, moment: str, stays: bool
) -> None:
    world, wrong = chain.engine, chain.clocks
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == 1:
            wrong.set(whose, STEPS[by])

    refusals = []
    for name, action in chain.actions():
        if name == MOMENTS[moment]:
            step()
        with stepping_at(world, MOMENTS[moment], step):
            before = written(world)
            refusal = refused(action)
            if refusal is not None:
                refusals.append(refusal)
                assert written(world) == before
                wrong.right()
                action()
        if taken and not stays:
            wrong.right()
    assert taken
    # Who is wrong by less than a minute is refused nothing.
    is_wrong = abs(STEPS[by]) > 60
    assert len(refusals) in ({1} if is_wrong and MOMENTS[moment] == "SETTLE" else {0, is_wrong})
    assert all(map(REFUSED.match, refusals))
    wrong.right()
    chain.finish()
    assert_every_unit_is_settled_once(world)
    assert payable(world) == paid(world)
    assert sum(paid(world).values()) == net(world)


# --- What a clock that stepped back did when clocks were compared


def test_a_movement_recorded_by_a_clock_that_went_back_behind_the_cutoff_is_adjusted_by_the_next_pass(
    world: Engine, wrong: Clocks
) -> None:
    organization = add_organization(world)
    settle_and_close(world, JANUARY)
    settle(world, FEBRUARY)
    wrong.set_database(-5)
    add_movement(world, organization, 100_000, "2026-01-10T10:00")
    wrong.right()
    with world.connect() as connection:
        assert late_months(connection) == (FEBRUARY,)
    assert settle(world, FEBRUARY).rows_adjusted == 1
    close(world, FEBRUARY)
    settle_and_close(world, MARCH)
    assert_every_unit_is_settled_once(world)


def test_it_is_settled_by_the_closing_when_it_comes_between_settlement_and_closing(
    world: Engine, wrong: Clocks
) -> None:
    organization = add_organization(world)
    settle(world, JANUARY)
    wrong.set_database(-5)
    add_movement(world, organization, 100_000, "2026-01-10T10:00")
    wrong.right()
    close(world, JANUARY)
    assert balances(world, "net") == [(88_000,)]
    assert_every_unit_is_settled_once(world)


def test_a_month_closed_before_the_instant_at_which_it_was_posted_does_not_stop_the_next(
    world: Engine, wrong: Clocks
) -> None:
    add_movement(world, add_organization(world), 100_000, "2026-01-10T10:00")
    settle(world, JANUARY)
    wrong.set_database(-5)
    close(world, JANUARY)
    wrong.right()
    settle_and_close(world, FEBRUARY)
    assert_every_unit_is_settled_once(world)


def test_a_second_pass_at_an_earlier_instant_takes_nothing_away(world: Engine, wrong: Clocks) -> None:
    add_movement(world, add_organization(world), 100_000, "2026-01-10T10:00")
    settle(world, JANUARY)
    wrong.set_database(-55)
    assert settle(world, JANUARY, full=True).changed_nothing
    close(world, JANUARY)
    assert net(world) == 88_000


def test_who_is_parked_when_a_month_is_closed_is_left_out_whatever_the_clock_says_of_the_two(
    world: Engine, wrong: Clocks
) -> None:
    add_movement(world, add_organization(world, external_ref="hall"), 100_000, "2026-01-10T10:00")
    settle(world, JANUARY)
    park(world, "hall", "its bank account is disputed", "test", FIRST)
    wrong.set_database(-30)
    close(world, JANUARY)
    wrong.right()
    assert balances(world) == []
    assert breaches(world) == []
    unpark(world, "hall", "test")
    settle_and_close(world, FEBRUARY)
    assert balances(world, "month", "net") == [(FEBRUARY.first_day, 88_000)]
    assert_every_unit_is_settled_once(world)


def test_a_pass_at_an_instant_far_ahead_does_not_hide_what_comes_after_it(world: Engine, wrong: Clocks) -> None:
    organization = add_organization(world)
    settle_and_close(world, JANUARY)
    with stepping_at(world, "INSERT INTO settlement_pass", lambda: wrong.set_database(MONTH)):
        settle(world, FEBRUARY)
    wrong.right()
    add_movement(world, organization, 100_000, "2026-01-10T10:00")
    assert settle(world, FEBRUARY).rows_adjusted == 1
    close(world, FEBRUARY)
    assert_every_unit_is_settled_once(world)


def test_statements_add_up_where_something_was_recorded_behind_a_closing(
    world: Engine, wrong: Clocks, tmp_path: Path
) -> None:
    organizations = add_organization(world), add_organization(world)
    for organization in organizations:
        add_movement(world, organization, 100_000, "2026-01-10T10:00")
    settle_and_close(world, JANUARY)
    wrong.set_database(-5)
    add_movement(world, organizations[1], 100, "2026-01-11T10:00")
    wrong.right()
    settle_and_close(world, FEBRUARY)
    for month in (JANUARY, FEBRUARY):
        stated = issue_statements(
            world, month, StatementOptions(Place.at(str(tmp_path)), mail_from=instant("2020-01-01T00:00")), now=NOW
        )
        assert stated.statements == 2


def test_a_closing_that_was_killed_is_finished_though_something_came_late_by_a_clock_that_went_back(
    world: Engine, wrong: Clocks
) -> None:
    first, second = add_organization(world), add_organization(world)
    for organization in (first, second):
        add_movement(world, organization, 100_000, "2026-01-10T10:00")
    settle(world, JANUARY)
    freeze(world, JANUARY, NOW, FIRST)
    BalanceWriter(world, JANUARY, 100).write(first, first)
    wrong.set_database(-10)
    late = add_movement(world, second, 100, "2026-01-11T10:00")
    wrong.right()
    close(world, JANUARY)
    assert state_of(world, JANUARY) == "CLOSED"
    add_void(world, late)
    settle_and_close(world, FEBRUARY)
    assert_every_unit_is_settled_once(world)


# --- Clocks that disagree


@pytest.mark.parametrize("whose", ["host", "database"])
@pytest.mark.parametrize(("seconds", "direction"), [(-90, "behind"), (90, "ahead of")])
def test_clocks_more_than_a_minute_apart_settle_nothing(
    world: Engine, wrong: Clocks, whose: str, seconds: int, direction: str
) -> None:
    add_movement(world, add_organization(world), 100_000, "2026-01-10T10:00")
    wrong.set(whose, seconds)
    of_the_host = direction if whose == "host" else {"behind": "ahead of", "ahead of": "behind"}[direction]
    with pytest.raises(TicketflowError, match=rf"This host's clock is (89|90|91) s {of_the_host} the database's"):
        settle(world, JANUARY)
    assert written(world) == (0, 0, 0, 0, 0, None)
    wrong.right()
    settle_and_close(world, JANUARY)
    assert_every_unit_is_settled_once(world)


@pytest.mark.parametrize("whose", ["host", "database"])
def test_a_month_that_one_of_the_clocks_says_is_not_over_is_not_settled(
    world: Engine, wrong: Clocks, whose: str
) -> None:
    """Both clocks are right to a few seconds, on either side of the end of a month."""
    add_organization(world)
    with world.connect() as connection:
        database_now, _ = clocks(connection)
    month = Month.of_instant(database_now, "Europe/Madrid").previous()
    ends_at = month.window("Europe/Madrid").ends_at
    distance = round((ends_at - database_now).total_seconds())
    before, after = distance - 20, distance + 20
    wrong.host = before if whose == "host" else after
    wrong.set_database(after if whose == "host" else before)
    business_now = datetime.now(UTC) + timedelta(seconds=wrong.host)
    with world.connect() as connection, pytest.raises(TicketflowError, match=f"{month} is not over in Europe/Madrid"):
        require_over(connection, month, business_now)
