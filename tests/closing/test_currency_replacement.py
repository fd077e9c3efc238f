"""Currencies that come and go: which are known, an organization's own from a month on, and what is left in the old."""

from __future__ import annotations

from datetime import date
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine

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
from tests.support.oracle import half_up
from tests.support.payable import rows
from tests.support.replaced import DECEMBER, FIRST, OFFICIAL, add_theatre, carry_bgn, conversions, replace
from tests.support.rows import add_movement, add_organization
from tests.support.settled import NOW, ledger, settle
from tests.support.sql_statements import execute
from ticketflow_orch.closing import close as close_file
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import import_folder
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.settlement.preview import dry_run

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
