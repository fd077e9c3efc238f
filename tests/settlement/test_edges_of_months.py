"""To which month a movement belongs, and from when on a month can be settled."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from sqlalchemy import Engine

from tests.support.books import APRIL, FEBRUARY, JANUARY
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import MARCH, NOW, ledger, nets, settle
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month, Window
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settlement.preview import dry_run


def test_a_month_is_over_when_it_is_over_where_the_organization_is(engine: Engine) -> None:
    add_organization(engine, timezone="Europe/Paris")
    with pytest.raises(TicketflowError, match="2026-03 is not over in Europe/Paris before 2026-04-01 00:00 "):
        settle(engine, now=instant("2026-03-31T21:30"))
    assert ledger(engine) == []
    settle(engine, now=instant("2026-03-31T22:30"))
    assert len(ledger(engine)) == 1


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("order", [(MARCH, APRIL), (APRIL, MARCH)], ids=["in order", "the later one first"])
def test_no_movement_is_lost_or_counted_twice_when_the_rules_of_a_zone_change(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, hours: int, order: tuple[Month, Month]
) -> None:
    """As Almaty's did at the end of February 2024, of which releases of the zone database knew a month before."""
    organization = add_organization(engine, external_ref="almaty", timezone="Asia/Almaty")
    edge = APRIL.window("Asia/Almaty").starts_at
    for minutes in (-90, -30, 30, 90):
        add_movement(engine, organization, 10_000, (edge + timedelta(minutes=minutes)).isoformat())
    first, second = order
    settle(engine, first)
    rules = Month.window

    def changed(month: Month, timezone: str) -> Window:
        was = rules(month, timezone)
        return Window(was.starts_at + timedelta(hours=hours), was.ends_at + timedelta(hours=hours))

    monkeypatch.setattr(Month, "window", changed)
    rehearsed = dry_run(engine, second, now=NOW, first_month=JANUARY)
    with engine.connect() as connection:
        explained = explain(connection, "almaty", second)
    settle(engine, second)
    assert ledger(engine, "month", "sequence", "captures") == [
        (MARCH.first_day, 0, 20_000),
        (APRIL.first_day, 0, 20_000),
    ]
    assert [total.net for total in rehearsed.totals] == [17_600]
    assert sum(line.captures for line in explained.lines) == 20_000


def test_two_organizations_in_one_zone_agree_whenever_they_were_set_up(engine: Engine) -> None:
    for joined_on in (date(2026, 1, 15), date(2026, 6, 15)):
        organization = add_organization(engine, timezone="America/New_York", joined_on=joined_on)
        add_movement(engine, organization, 100, "2026-04-01T03:30")
    settle(engine)
    assert ledger(engine, "month", "sequence", "captures") == [(MARCH.first_day, 0, 100)] * 2


def test_the_last_day_of_a_month_belongs_to_it_to_its_end(engine: Engine) -> None:
    organization = add_organization(engine, timezone="Europe/Berlin")
    for moment in ("05-31T00:30", "05-31T12:00", "05-31T23:59:59.999999", "06-01T00:00"):
        add_movement(engine, organization, 1, f"2026-{moment}+02:00")
    settle(engine, Month(2026, 5))
    assert ledger(engine, "organization_id", "currency", "captures") == [(organization, "EUR", 3)]


def test_an_earlier_month_can_be_settled_after_a_later_one(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    add_movement(engine, organization, 1000, "2026-03-10T10:00")
    settle(engine)
    settle(engine, FEBRUARY)
    assert nets(engine) == [88, 880]
