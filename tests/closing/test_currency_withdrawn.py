"""What people are told of currencies that are not in use any more, and the command that replaces one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from typer.testing import CliRunner, Result

from tests.support.audited import listed
from tests.support.books import (
    JANUARY,
)
from tests.support.folders import story, write_folder
from tests.support.homes import fresh_home, variables_for
from tests.support.payable import rows
from tests.support.replaced import FIRST, OFFICIAL, add_theatre, carry_bgn, conversions, replace
from tests.support.rows import add_movement, add_organization
from tests.support.settled import settle
from ticketflow_orch import cli
from ticketflow_orch.closing.currency_replacement import preview_replacement
from ticketflow_orch.closing.currency_terms import Terms, Whose
from ticketflow_orch.importing import import_folder
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.monitoring.obstacles import read_obstacles


def test_health_names_the_currency_that_is_withdrawn_until_another_one_is_decided(engine: Engine) -> None:
    def obstacles() -> list[str]:
        with engine.connect() as connection:
            found = read_obstacles(connection, FIRST)
        return [f"{one.what}; {one.out}" for one in found if one.what.startswith("currency")]

    add_organization(engine)
    add_theatre(engine, external_ref="left", left_on=date(2026, 1, 31))
    assert obstacles() == []
    for ref in ("theatre", "opera"):
        add_theatre(engine, external_ref=ref)
    [said] = obstacles()
    assert said.startswith("currency: BGN is that of 2 organizations, such as opera, and was in use until 2026-01-31; ")
    assert "`ticketflow currency replace --all BGN --from-month YYYY-MM --to CODE --rate RATE`" in said
    assert listed(engine)["withdrawn_currencies"] == [
        f"{ref} BGN is its currency, and was in use until 2026-01-31" for ref in ("opera", "theatre")
    ]
    replace(engine, None, every="BGN")
    assert (obstacles(), listed(engine)["withdrawn_currencies"]) == ([], [])
    with engine.begin() as connection:
        connection.execute(
            text("""
                INSERT INTO organization_currency (organization_id, from_month, currency, decided_by)
                SELECT id, '2026-05-01', 'HRK', 'eva' FROM organization WHERE external_ref = 'opera'
            """)
        )
    [said] = obstacles()
    assert said.startswith("currency: HRK is that of organization opera, and was in use until 2023-01-14")


def test_movements_in_a_currency_that_was_not_in_use_are_taken_and_listed(engine: Engine) -> None:
    theatre = add_theatre(engine)
    add_movement(engine, theatre, 100, "2026-02-20T10:00", currency="BGN", external_ref="beside the changeover")
    sale = add_movement(engine, theatre, 100, "2026-03-20T10:00", currency="BGN", external_ref="after")
    add_movement(engine, theatre, 100, "2024-12-20T10:00", currency="XCG", external_ref="before")
    add_movement(engine, theatre, -50, "2026-04-20T10:00", currency="BGN", kind="REFUND", reverses_id=sale)
    free = {"commission_rate_bps": 0, "commission_tax_bps": 0, "reason": "as agreed"}
    add_movement(engine, theatre, -50, "2026-04-20T10:00", currency="BGN", kind="MANUAL", **free)
    assert listed(engine)["currencies_out_of_use"] == [
        "2024-12 theatre XCG before of 2024-12-20 over 100, and the currency was in use from 2025-03-31",
        "2026-03 theatre BGN after of 2026-03-20 over 100, and the currency was in use from 1999-07-05 until "
        "2026-01-31",
    ]
    assert settle(engine).rows_new == 1


def test_an_import_takes_them_and_warns(engine: Engine, tmp_path: Path) -> None:
    told = story()
    told["organizations"][0]["currency"] = "HRK"
    for movement in told["money_movements"]:
        movement["currency"] = "HRK"
    folder = write_folder(tmp_path, told)
    result = import_folder(engine, folder, FIRST)
    assert result.new.money_movements == 7
    assert list(result.warnings) == [
        "2 movements in HRK, such as 'm1' of 2026-05-01, when it was not in use (from 1994-05-30 until 2023-01-14); "
        "`ticketflow audit` lists them.",
        "1 organization with the currency HRK, such as 'o1', which was in use until 2023-01-14; `ticketflow currency "
        "replace` gives them another.",
    ]
    assert import_folder(engine, folder, FIRST).warnings == ()


@pytest.fixture
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[None]:
    """A home on a running server with a migrated database."""
    with fresh_home(scratch, **variables_for(url, server.url("unused"))):
        yield


@pytest.mark.usefixtures("home")
def test_the_command_shows_what_it_would_do_and_does_it_when_told_so(engine: Engine) -> None:
    carry_bgn(engine)
    command = ["currency", "replace", "theatre", "--from-month", "2026-01", "--to", "eur", "--rate", OFFICIAL]

    def run(*options: str) -> Result:
        return CliRunner().invoke(cli.app, [*command, *options])

    shown = run()
    lines = shown.stdout.splitlines()
    assert lines[:2] == [
        "From 2026-01 on EUR is the currency of 1 organization instead of BGN.",
        "In 2026-01, at 1 EUR = 1.95583 BGN: 26.40 BGN of 1 organization become 13.50 EUR.",
    ]
    assert lines[-1] == "Nothing is written yet; the same command with --yes does it."
    assert (shown.exit_code, conversions(engine)) == (0, [])
    assert run("--yes", "--by", "ana").exit_code == 0
    assert len(conversions(engine)) == 2
    assert rows(engine, "SELECT decided_by FROM organization_currency") == [("ana (role postgres)",)]
    again = run("--yes").stdout.splitlines()
    assert again[-1] == "There is nothing to do: the currency is EUR, and closed books carry nothing else in BGN."


def test_a_preview_writes_nothing(engine: Engine) -> None:
    carry_bgn(engine)
    terms = Terms(JANUARY, "EUR", Decimal(OFFICIAL))
    assert preview_replacement(engine, Whose("theatre"), terms).converted == 1
    assert (conversions(engine), rows(engine, "SELECT * FROM organization_currency")) == ([], [])
