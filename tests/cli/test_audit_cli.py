"""`ticketflow audit` and what `ticketflow doctor` says of the order of recording, on one home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from docs.invariants import FILE, page
from tests.support.homes import fresh_home
from tests.support.settled import tamper
from ticketflow_orch import cli
from ticketflow_orch.auditing import INVARIANTS
from ticketflow_orch.cli.session import database
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import databases
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def closed(scratch: Path) -> Iterator[None]:
    """A home in April 2026 with January to March settled and the first of them closed."""
    with fresh_home(scratch, TICKETFLOW_FIXED_CLOCK="2026-04-15T10:00:00Z"):
        databases.ensure_running(settings())
        with database("test") as engine:
            load_demo(engine, Month(2026, 3), months=3, organizations=40)
        assert invoke("settle", "--from", "2026-01", "--to", "2026-03").exit_code == 0
        assert invoke("close", "2026-01").exit_code == 0
        yield


def past_the_guards(*statements: str) -> None:
    engine = connect_engine(databases.ensure_running(settings()).ticketflow, "pytest")
    for statement in statements:
        tamper(engine, statement)
    engine.dispose()


@pytest.mark.usefixtures("closed")
def test_every_invariant_is_shown_and_all_is_well() -> None:
    result = invoke("audit")
    assert result.exit_code == 0, result.stdout
    lines = result.stdout.splitlines()
    shown = [line.split()[1].rstrip(":") for line in lines if line.startswith(("OK", "listed"))]
    assert shown == [one.name for one in INVARIANTS]
    assert lines[-1] == "All is as it should be."
    # While payouts are off what is due is carried, and nothing counts as paid.
    assert not [line for line in lines if line.startswith("listed  payables_unpaid")]


@pytest.mark.usefixtures("closed")
def test_what_is_broken_is_shown_with_its_first_rows_and_the_fix_and_narrowed_down() -> None:
    more = "UPDATE ledger_entry SET captures = captures + 1, net = net + 1 WHERE month = '2026-01-01'"
    past_the_guards(more)
    try:
        result = invoke("audit")
        assert result.exit_code == 1
        assert "BROKEN  ledger_reconciles: " in result.stdout
        assert result.stdout.count("          2026-01 demo-") >= 20
        assert "more\n        Fix: Settle the first month that is not closed" in result.stdout
        assert f"3 of {len(INVARIANTS)} are broken." in result.stdout
        one = invoke("audit", "--month", "2026-01", "--organization", "demo-00001")
        assert one.exit_code == 1
        assert "BROKEN  ledger_reconciles: 1\n" in one.stdout
        assert "demo-00002" not in one.stdout
        assert invoke("audit", "--month", "2026-02").exit_code == 0
    finally:
        past_the_guards(more.replace("+ 1", "- 1"))


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--month", "2026-13"), "'2026-13' is not a month; write it as YYYY-MM"),
        (("--organization", "nobody"), "There is no organization 'nobody'"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[str, str], sentence: str) -> None:
    with pytest.raises(TicketflowError, match=sentence):
        invoke("audit", *arguments)


@pytest.mark.usefixtures("closed")
def test_the_doctor_says_when_ids_are_not_the_order_of_recording() -> None:
    engine = connect_engine(databases.ensure_running(settings()).ticketflow, "pytest")
    cache = "ALTER TABLE money_movement ALTER COLUMN id SET CACHE {}"
    try:
        said = invoke("doctor").stdout
        assert "order of recording  ok" in said
        assert "payouts are off, and" in " ".join(said.split())
        with engine.begin() as connection:
            connection.execute(text(cache.format(32)))
        found = invoke("doctor")
        assert found.exit_code == 1
        assert "money_movement.id comes from a sequence with cache 32 instead of 1" in found.stdout
    finally:
        with engine.begin() as connection:
            connection.execute(text(cache.format(1)))
        engine.dispose()


@pytest.mark.usefixtures("closed")
def test_the_doctor_names_what_no_longer_guards_money() -> None:
    engine = connect_engine(databases.ensure_running(settings()).ticketflow, "pytest")
    switch = "ALTER TABLE payout {} TRIGGER payout_frozen"
    try:
        assert "all that the migrations built is there and switched on" in " ".join(invoke("doctor").stdout.split())
        with engine.begin() as connection:
            connection.execute(text(switch.format("DISABLE")))
        found = invoke("doctor")
        assert found.exit_code == 1
        assert "trigger payout_frozen is missing or switched off" in " ".join(found.stdout.split())
    finally:
        with engine.begin() as connection:
            connection.execute(text(switch.format("ENABLE")))
        engine.dispose()


def test_the_page_about_the_invariants_is_what_the_code_says() -> None:
    assert FILE.read_text("utf-8") == page(), "run `make inventory`"
