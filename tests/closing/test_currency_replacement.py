"""Currencies that come and go: which are known, an organization's own from a month on, and what is left in the old."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from babel.core import get_global
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from typer.testing import CliRunner, Result

from tests.conftest import fresh_database
from tests.settlement.test_settlement import NOW, ledger, settle
from tests.support.audited import broken, listed
from tests.support.books import (
    APRIL,
    FEBRUARY,
    JANUARY,
    MARCH,
    add_opening_balance,
    add_payout,
    balances,
    breaches,
    close,
    set_minimum,
    settle_and_close,
)
from tests.support.folders import story, write_folder
from tests.support.homes import fresh_home, variables_for
from tests.support.oracle import half_up
from tests.support.payable import pay_from, rows
from tests.support.rows import add_movement, add_organization
from tests.support.sql_statements import begin_pass, execute, refusal
from ticketflow_orch import cli
from ticketflow_orch.closing import close as close_file
from ticketflow_orch.closing.currency_replacement import Replaced, preview_replacement, replace_currency
from ticketflow_orch.closing.currency_terms import Terms, Whose
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import import_folder
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.monitoring.obstacles import read_obstacles
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.settlement.preview import dry_run

DECEMBER = JANUARY.previous()
FIRST = Month(2014, 10)
OFFICIAL = "1.95583"


def replace(engine: Engine, organization: str | None = "theatre", **options: str) -> Replaced:
    """The theatre's, or all organizations' BGN replaced by EUR from January on, unless said otherwise."""
    terms = {"from_month": "2026-01", "new": "EUR", "rate": OFFICIAL}
    every = options.pop("every", None)
    return replace_currency(engine, Whose.named(organization, every), Terms.parse(**terms | options), "ana")


def add_theatre(engine: Engine, **values: Any) -> int:
    return add_organization(
        engine, **{"external_ref": "theatre", "timezone": "Europe/Sofia", "currency": "BGN"} | values
    )


def carry_bgn(engine: Engine, amount: int = 3_000) -> int:
    """A theatre whose December is closed and carries what its one sale in BGN came to, below the minimum."""
    set_minimum(engine, 100_000, "BGN")
    theatre = add_theatre(engine)
    add_movement(engine, theatre, amount, "2025-12-20T10:00", currency="BGN")
    settle_and_close(engine, DECEMBER)
    return theatre


def conversions(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(
        engine,
        """
        SELECT organization_id, currency, amount FROM money_movement WHERE kind = 'MANUAL' ORDER BY organization_id, id
        """,
    )


# --- Which are known


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


# --- An organization's own, from a month on


@pytest.mark.every_server
def test_where_a_currency_is_replaced_nothing_is_carried_in_the_old_one_any_more(
    engine: Engine, tmp_path: Path
) -> None:
    set_minimum(engine, 5_000, "BGN")
    told = story()
    organization = told["organizations"][0] | {"timezone": "Europe/Sofia", "currency": "BGN"}
    sale = told["money_movements"][1] | {"reservation_ref": ""}
    sales = [
        sale | {"external_ref": "lev", "currency": "BGN", "amount": "3000", "occurred_at": "2025-12-20T10:00:00Z"},
        sale | {"external_ref": "euro", "amount": "9000", "occurred_at": "2026-01-20T10:00:00Z"},
    ]
    folder = write_folder(tmp_path, {"organizations": [organization], "money_movements": sales})
    import_folder(engine, folder, FIRST)
    settle_and_close(engine, DECEMBER)
    replaced = replace(engine, "o1")
    assert (replaced.decided, replaced.dated, replaced.before, replaced.after) == (1, JANUARY, 2_637, 1_348)
    settle_and_close(engine, JANUARY, FEBRUARY)
    assert balances(engine, "to_char(month, 'YYYY-MM')", "currency", "opening", "net", "payable", "closing") == [
        ("2025-12", "BGN", 0, 2_637, 0, 2_637),
        ("2026-01", "BGN", 2_637, -2_637, 0, 0),
        ("2026-01", "EUR", 0, 7_911 + 1_348, 7_911 + 1_348, 0),
        ("2026-02", "EUR", 0, 0, 0, 0),
    ]
    assert breaches(engine) == []
    # The folder still says what the organization's first currency was; one that says the new one is as true.
    assert import_folder(engine, folder, FIRST).import_id is None
    write_folder(tmp_path, {"organizations": [organization | {"currency": "EUR"}]})
    assert import_folder(engine, folder, FIRST).import_id is None


def test_every_active_organization_has_its_row_in_the_currency_that_is_in_force(engine: Engine) -> None:
    theatre, other = add_theatre(engine), add_organization(engine)
    replace(engine, from_month="2026-02")
    replace(engine, from_month="2026-04", new="USD", rate="0.9")
    assert dry_run(engine, JANUARY, now=NOW, first_month=FIRST).totals[0].currency == "BGN"
    for month in (JANUARY, FEBRUARY, MARCH, APRIL):
        would_post = dry_run(engine, month, now=NOW, first_month=FIRST).entries
        assert settle(engine, month).rows_new == would_post == 2
        assert settle(engine, month).changed_nothing
    own = [currency for id_, _, currency in ledger(engine, "organization_id", "month", "currency") if id_ == theatre]
    assert own == ["BGN", "EUR", "EUR", "USD"]
    assert rows(engine, "SELECT DISTINCT currency FROM ledger_entry WHERE organization_id = :id", id=other) == [
        ("EUR",)
    ]
    assert breaches(engine) == []
    execute(engine, "ALTER TABLE ledger_entry DISABLE TRIGGER ALL")
    execute(engine, "DELETE FROM ledger_entry WHERE currency = 'USD'")
    execute(engine, "ALTER TABLE ledger_entry ENABLE TRIGGER ALL")
    assert broken(engine)["complete"] == ["2026-04 theatre USD has no settlement row"]
    assert settle(engine, APRIL).rows_new == 1


def test_what_comes_late_in_the_old_currency_is_settled_in_it(engine: Engine) -> None:
    theatre = carry_bgn(engine)
    replace(engine)
    settle_and_close(engine, JANUARY)
    sale = rows(engine, "SELECT id FROM money_movement WHERE kind = 'CAPTURE'")[0][0]
    add_movement(engine, theatre, -1_000, "2026-02-03T10:00", currency="BGN", kind="REFUND", reverses_id=sale)
    add_movement(engine, theatre, 500, "2025-12-30T10:00", currency="BGN")
    settle_and_close(engine, FEBRUARY)
    assert balances(engine, "currency", "closing", where="month = '2026-02-01'") == [("BGN", -880 + 440), ("EUR", 0)]
    assert breaches(engine) == []
    assert listed(engine)["withdrawn_currencies"] == [
        "2026-02 theatre BGN carries -440, and the currency was in use until 2026-01-31"
    ]
    replaced = replace(engine)
    assert (replaced.decided, replaced.dated, replaced.before, replaced.after) == (0, MARCH, -440, -225)
    settle_and_close(engine, MARCH)
    assert balances(engine, "currency", "closing", where="month = '2026-03-01'") == [("BGN", 0), ("EUR", -225)]
    assert listed(engine)["withdrawn_currencies"] == []


def test_a_decision_ahead_of_its_month_converts_when_the_months_before_are_closed(engine: Engine) -> None:
    set_minimum(engine, 100_000, "BGN")
    theatre = add_theatre(engine)
    add_movement(engine, theatre, 3_000, "2025-12-20T10:00", currency="BGN")
    settle_and_close(engine, Month(2025, 11))
    ahead = replace(engine)
    assert (ahead.decided, ahead.dated, ahead.converted) == (1, None, 0)
    assert "2025-12 is not closed" in ahead.why_not_yet
    settle_and_close(engine, DECEMBER)
    settle(engine, JANUARY)
    assert [row[2] for row in ledger(engine, "month", "organization_id", "currency")] == ["BGN", "BGN", "EUR"]
    # January is settled already: what is dated in it now is late in it.
    assert (replace(engine).converted, conversions(engine)) == (1, [(theatre, "BGN", -2_640), (theatre, "EUR", 1_350)])
    assert settle(engine, JANUARY).rows_adjusted == 1
    close(engine, JANUARY)
    assert balances(engine, "currency", "closing", "payable", where="month = '2026-01-01'") == [
        ("BGN", 0, 0), ("EUR", 0, 1_350),
    ]  # fmt: skip


def test_a_decision_that_was_wrong_is_replaced_while_its_month_is_not_settled(engine: Engine) -> None:
    add_theatre(engine)
    replace(engine, new="USD", rate="0.6")
    replace(engine)
    settle(engine, JANUARY)
    assert rows(engine, "SELECT currency FROM ledger_entry") == [("EUR",)]


# --- What is left in the old one


def test_balances_of_all_are_divided_exactly_and_rounded_once_half_up_on_magnitude(engine: Engine) -> None:
    random = Random(11)
    for rate, old, new in (
        (OFFICIAL, "BGN", "EUR"),
        ("2", "HRK", "USD"),
        ("340.750", "SIT", "JPY"),
        ("0.02", "KWD", "CLF"),
    ):
        add_organization(engine, currency=new)
        owed = {}
        for amount in (1, -1, 3, -3, 5, 2**40 + 1, *(random.randint(-(10**9), 10**9) for _ in range(20))):
            organization = add_organization(engine, currency=old)
            add_opening_balance(engine, organization, amount, old)
            owed[organization] = amount
        replaced = replace(engine, None, every=old, new=new, rate=rate, from_month="2014-10")
        exact = {
            organization: Fraction(amount) / Fraction(rate) * 10**replaced.new_exponent / 10**replaced.old_exponent
            for organization, amount in owed.items()
        }
        expected = [
            (organization, currency, amount)
            for organization in owed
            for currency, amount in ((old, -owed[organization]), (new, half_up(exact[organization])))
            if amount
        ]
        assert [row for row in conversions(engine) if row[0] in owed] == expected
        assert replaced.after == sum(half_up(value) for value in exact.values())
        assert (replaced.decided, replaced.converted, replaced.before) == (len(owed), len(owed), sum(owed.values()))


def test_a_repeat_does_nothing(engine: Engine) -> None:
    carry_bgn(engine)
    assert not replace(engine).changes_nothing
    written = (conversions(engine), rows(engine, "SELECT * FROM organization_currency"))
    again = replace(engine)
    assert (again.changes_nothing, again.already) == (True, 1)
    assert replace(engine, None, every="BGN", rate="2").changes_nothing
    assert (conversions(engine), rows(engine, "SELECT * FROM organization_currency")) == written
    assert rows(engine, "SELECT external_ref, reason FROM money_movement WHERE kind = 'MANUAL' AND amount < 0") == [
        ("currency-replaced:2026-01:BGN:EUR:out:theatre", "EUR replaces BGN: 1 EUR = 1.95583 BGN")
    ]


def test_what_closed_books_have_not_taken_in_is_not_converted_again(engine: Engine) -> None:
    theatre, opera = carry_bgn(engine), add_theatre(engine, external_ref="opera")
    add_opening_balance(engine, opera, 1_000, "BGN")
    assert (replace(engine).before, replace(engine, "opera").before) == (2_640, 1_000)
    for ref in ("theatre", "opera"):
        park(engine, ref, "dispute", "eva", JANUARY)
    settle_and_close(engine, JANUARY)
    for ref in ("theatre", "opera"):
        assert (replace(engine, ref).converted, replace(engine, ref).already) == (0, 1)
        unpark(engine, ref, "eva")
        assert replace(engine, ref).converted == 0
    settle_and_close(engine, FEBRUARY)
    assert balances(engine, "organization_id", "currency", "due", where="month = '2026-02-01'") == [
        (theatre, "BGN", 0), (theatre, "EUR", 1_350), (opera, "BGN", 0), (opera, "EUR", 511),
    ]  # fmt: skip
    assert replace(engine).already == 0


def test_a_conversion_that_came_too_late_for_the_books_of_its_month_is_not_repeated(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_minimum(engine, 100_000, "BGN")
    add_movement(engine, add_theatre(engine), 3_000, "2025-12-20T10:00", currency="BGN")
    settle_and_close(engine, Month(2025, 11))
    assert replace(engine).decided == 1
    settle_and_close(engine, DECEMBER)
    settle(engine, JANUARY)
    freeze = close_file.freeze

    def converted_meanwhile(*arguments: Any) -> None:
        assert replace(engine).converted == 1
        freeze(*arguments)

    monkeypatch.setattr(close_file, "freeze", converted_meanwhile)
    close(engine, JANUARY)
    monkeypatch.undo()
    assert balances(engine, "currency", "closing", where="month = '2026-01-01'") == [("BGN", 2_640), ("EUR", 0)]
    assert (replace(engine).converted, replace(engine).already) == (0, 1)
    settle(engine, FEBRUARY)
    assert replace(engine).converted == 0
    close(engine, FEBRUARY)
    assert balances(engine, "currency", "due", where="month = '2026-02-01'") == [("BGN", 0), ("EUR", 1_350)]
    assert (replace(engine).converted, replace(engine).already) == (0, 0)


def test_what_was_converted_into_another_currency_is_converted_anew_only_when_that_is_voided(engine: Engine) -> None:
    theatre = carry_bgn(engine)
    replace(engine, new="USD", rate="0.6")
    for new in ("EUR", "BGN"):
        with pytest.raises(
            TicketflowError, match=r"'theatre' is not converted: what it was owed in BGN became USD in 2026-01"
        ):
            replace(engine, new=new)
    assert conversions(engine) == [(theatre, "BGN", -2_640), (theatre, "USD", 4_400)]
    execute(
        engine,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, is_void, reverses_id, currency, amount,
            commission_rate_bps, commission_tax_bps, reason, occurred_at)
        SELECT external_ref || '-void', organization_id, kind, true, id, currency, -amount, 0, 0, 'wrong', occurred_at
        FROM money_movement WHERE kind = 'MANUAL'
        """,
    )
    assert (replace(engine).before, replace(engine).already) == (2_640, 1)
    settle_and_close(engine, JANUARY)
    assert balances(engine, "currency", "due", where="month = '2026-01-01'") == [("BGN", 0), ("EUR", 1_350), ("USD", 0)]


def test_a_decision_is_taken_back_while_its_month_is_not_settled(engine: Engine) -> None:
    carry_bgn(engine)
    assert replace(engine, from_month="2026-03").decided == 1
    back = {"new": "BGN", "rate": "1"}
    with pytest.raises(TicketflowError, match="BGN is the currency in 2025-12 already"):
        replace(engine, **back)
    execute(engine, "UPDATE currency SET last_day = NULL WHERE code = 'BGN'")
    assert replace(engine, from_month="2026-03", **back).decided == 1
    with pytest.raises(TicketflowError, match="BGN is the currency in 2026-02 already"):
        replace(engine, from_month="2026-03", **back)
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH)
    assert {currency for (currency,) in rows(engine, "SELECT currency FROM ledger_entry")} == {"BGN"}
    assert conversions(engine) == []


def test_what_comes_back_later_is_converted_with_it(engine: Engine) -> None:
    theatre = add_theatre(engine)
    add_movement(engine, theatre, 3_000, "2025-12-20T10:00", currency="BGN")
    settle_and_close(engine, DECEMBER)
    add_payout(engine, theatre, DECEMBER, "REJECTED", "BGN")
    assert replace(engine).before == 2_640
    settle_and_close(engine, JANUARY)
    assert balances(engine, "currency", "returned", "due", where="month = '2026-01-01'") == [
        ("BGN", 2_640, 0), ("EUR", 0, 1_350),
    ]  # fmt: skip
    assert breaches(engine) == []


def test_of_several_organizations_only_those_that_cannot_be_converted_are_left_out(engine: Engine) -> None:
    refs = ("paid", "theatre", "elsewhere", "left")
    ids = [add_theatre(engine, external_ref=ref) for ref in refs]
    for organization, amount in zip(ids, (200_000, 3_000, 3_000, 3_000), strict=True):
        add_movement(engine, organization, amount, "2025-12-20T10:00", currency="BGN")
    set_minimum(engine, 100_000, "BGN")
    settle_and_close(engine, DECEMBER)
    add_payout(engine, ids[0], DECEMBER, "REQUESTED", "BGN")
    execute(engine, "ALTER TABLE organization DISABLE TRIGGER ALL")
    execute(engine, "UPDATE organization SET timezone = 'Europe/Nowhere' WHERE id = :id", id=ids[2])
    execute(engine, "ALTER TABLE organization ENABLE TRIGGER ALL")
    execute(engine, "UPDATE organization SET left_on = '2025-12-31' WHERE id = :id", id=ids[3])
    add_theatre(engine, external_ref="left long ago", left_on=date(2025, 6, 30))
    replaced = replace(engine, None, every="BGN")
    assert [ref for ref, _ in replaced.left_out] == ["paid", "elsewhere"]
    assert "of 2025-12 is REQUESTED" in replaced.left_out[0][1]
    assert "'Europe/Nowhere' is unknown" in replaced.left_out[1][1]
    assert (replaced.decided, replaced.converted) == (2, 2)
    assert [(row[0], row[1]) for row in conversions(engine)] == [
        (ids[1], "BGN"), (ids[1], "EUR"), (ids[3], "BGN"), (ids[3], "EUR"),
    ]  # fmt: skip


# --- What is refused


@pytest.mark.parametrize("rate", ["0", "0.000", "-1", "inf", "nan", "1e3", "1,95583", "", " 2", "١", "9" * 19])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(TicketflowError, match=r"is no rate; write how many of the old currency are one of the new one"):
        Terms.parse("2026-01", "EUR", rate)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"new": "QQQ"}, "Currency 'QQQ' is unknown"),
        ({"new": "EURO"}, "'EURO' is no currency"),
        ({"new": "BGN"}, "BGN is the currency in 2025-12 already"),
        ({"new": "HRK"}, "HRK is not in use any more in 2026-01: its last day was 2023-01-14"),
        ({"from_month": "2026-13"}, "'2026-13' is not a month"),
        (
            {"from_month": "2025-12"},
            "2025-12 is closed, so its currency stays; the first month from which another one can",
        ),
        ({"organization": "nobody"}, "There is no organization 'nobody'"),
        ({"organization": "seller"}, "EUR is the currency in 2025-12 already"),
        ({"organization": None}, "Name one organization, or all that have a currency"),
        ({"every": "BGN"}, "Name one organization, or all that have a currency"),
        ({"organization": None, "every": "HRK"}, "No organization has HRK as its currency in 2025-12"),
        ({"organization": "huge"}, "Organization 'huge' is not converted: at this rate it would be owed more than"),
        ({"organization": "paid"}, "Organization 'paid' is not converted: payout .* of 2025-12 is REQUESTED"),
    ],
)
def test_what_cannot_be_replaced_is_one_sentence_and_nothing_is_written(
    engine: Engine, asked: dict[str, str], sentence: str
) -> None:
    add_organization(engine, external_ref="seller")
    paid = add_theatre(engine, external_ref="paid")
    add_opening_balance(engine, paid, 1_000_000, "BGN")
    carry_bgn(engine)
    add_payout(engine, paid, DECEMBER, "REQUESTED", "BGN")
    add_opening_balance(engine, add_theatre(engine, external_ref="huge"), 2**62, "BGN")
    rate = {"rate": "0.1"} if asked.get("organization") == "huge" else {}
    with pytest.raises(TicketflowError, match=sentence):
        replace(engine, **asked | rate)
    assert (conversions(engine), rows(engine, "SELECT * FROM organization_currency")) == ([], [])


def test_a_month_that_is_being_settled_keeps_its_currency(engine: Engine) -> None:
    add_theatre(engine)
    begin_pass(engine, "2026-02-01")
    with pytest.raises(
        TicketflowError, match=r"2026-02 is being settled, so its currency stays.* can be in force is 2026-03"
    ):
        replace(engine)
    assert replace(engine, from_month="2026-03").decided == 1


def test_a_month_that_is_being_closed_converts_nothing(engine: Engine) -> None:
    carry_bgn(engine)
    settle(engine, JANUARY)
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-01-01'")
    with pytest.raises(TicketflowError, match="2026-01 is being closed; try again when it is"):
        replace(engine, from_month="2026-02")


def test_nothing_is_converted_in_a_month_that_is_settled_elsewhere(engine: Engine) -> None:
    carry_bgn(engine)
    pay_from(engine, Month(2026, 3))
    replaced = replace(engine)
    assert (replaced.decided, replaced.converted) == (1, 0)
    assert "2026-01 is before 2026-03, the first month that is paid here" in replaced.why_not_yet


def test_nothing_is_converted_for_whom_the_month_is_settled_elsewhere(engine: Engine) -> None:
    theatre = carry_bgn(engine)
    pay_from(engine, Month(2026, 3), theatre)
    with pytest.raises(TicketflowError, match="it is paid from 2026-03 on, and what is dated before counts as settled"):
        replace(engine)
    assert conversions(engine) == []


@pytest.mark.every_server
def test_the_database_keeps_decisions_and_takes_none_about_months_that_are_settled(engine: Engine) -> None:
    theatre = add_theatre(engine)
    replace(engine, from_month="2026-02")
    settle(engine, FEBRUARY)
    for statement in (
        "UPDATE organization_currency SET currency = 'USD'",
        "DELETE FROM organization_currency",
        "TRUNCATE organization_currency",
    ):
        assert "organization_currency is append-only" in refusal(engine, statement)
    decision = "INSERT INTO organization_currency (organization_id, from_month, currency, decided_by)"
    for month in ("2026-01-01", "2026-02-01"):
        said = refusal(engine, f"{decision} VALUES ({theatre}, '{month}', 'USD', 'eva')")
        assert said.splitlines()[0] == f"no currency changes from {month[:7]} on, because 2026-02 is settled"


# --- What is said


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
