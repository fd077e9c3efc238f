"""Which currencies are known, with their days, exponents and minimums."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from babel.core import get_global
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.conftest import fresh_database
from tests.support.payable import rows
from tests.support.rows import add_organization
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.local.postgres import EmbeddedServer


def days_by_the_library() -> dict[str, tuple[date | None, date | None]]:
    """First and last day of each currency over all territories; None where one of them names none."""
    spans: dict[str, list[tuple[Any, Any]]] = {}
    for used in get_global("territory_currencies").values():
        for code, start, end, _ in used:
            spans.setdefault(code, []).append((start and date(*start), end and date(*end)))
    return {
        code: (
            None if any(start is None for start, _ in span) else min(start for start, _ in span),
            None if any(end is None for _, end in span) else max(end for _, end in span),
        )
        for code, span in spans.items()
    }


def test_currencies_have_the_days_that_the_library_knows_and_none_is_missing_since_1999(engine: Engine) -> None:
    stored = {row[0]: row[1:] for row in rows(engine, "SELECT code, first_day, last_day FROM currency")}
    known = days_by_the_library()
    # Legal tender in El Salvador beside the dollar, which replaced it in payments.
    assert {code for code, (_, last) in stored.items() if last is None and known[code][1] is not None} == {"SVC"}
    assert {code: days for code, days in stored.items() if code != "SVC" and days != known[code]} == {}
    units = {"CNH", "ECV", "MCF", "XFO", "XFU", "XRE", "XAG", "XAU", "XBA", "XBB", "XBC", "XBD", "XDR", "XPD", "XPT"}
    units |= {"XSU", "XTS", "XUA", "XXX"}
    wanted = {code for code, (_, last) in known.items() if last is None or last >= date(1999, 1, 1)}
    assert wanted - set(stored) == units


@pytest.mark.parametrize(
    ("code", "exponent"),
    [("XCG", 2), ("ZWG", 2), ("HRK", 2), ("SLL", 2), ("MRO", 2), ("ITL", 0), ("CLF", 4), ("UYW", 4), ("KWD", 3)],
)
def test_successors_and_what_history_needs_are_known_and_paid_from_the_first_unit(
    engine: Engine, code: str, exponent: int
) -> None:
    assert rows(engine, "SELECT exponent, payout_minimum FROM currency WHERE code = :code", code=code) == [
        (exponent, 0)
    ]


@pytest.fixture
def before(server: EmbeddedServer) -> Iterator[URL]:
    """A database from before currencies had days, in which somebody has entered one of the new ones."""
    with fresh_database(server, "template1") as url:
        migrate(url, "0014")
        engine = connect_engine(url, "pytest", connections=1)
        execute(engine, "INSERT INTO currency (code, exponent, payout_minimum) VALUES ('XCG', 2, 500), ('QQQ', 1, 7)")
        add_organization(engine, currency="XCG")
        engine.dispose()
        yield url


@pytest.mark.every_server
def test_what_was_entered_before_keeps_its_exponent_and_its_minimum(before: URL) -> None:
    assert migrate(before)
    engine = connect_engine(before, "pytest", connections=1)
    found = rows(engine, "SELECT * FROM currency WHERE code IN ('QQQ', 'XCG', 'BGN') ORDER BY code")
    engine.dispose()
    assert found == [
        ("BGN", 2, 0, date(1999, 7, 5), date(2026, 1, 31)), ("QQQ", 1, 7, None, None),
        ("XCG", 2, 500, date(2025, 3, 31), None),
    ]  # fmt: skip
