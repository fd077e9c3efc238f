"""The demo data: the same for the same seed, loaded once, and true to life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.copies import shared_database
from tests.support.folders import counts
from tests.support.rows import add_organization
from ticketflow_orch.demo_data import demo_batches, load_demo, require_no_others
from ticketflow_orch.demo_data.world import PLACES
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import undo_import
from ticketflow_orch.importing.format import KINDS
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month, months_between

LAST = Month(2026, 6)


def rows(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)))


def drawn(last: Month = LAST, organizations: int = 30, seed: int = 1) -> list[tuple[str, list[Any]]]:
    return [(batch.kind.name, list(batch.rows)) for batch in demo_batches(Month(2026, 1), last, organizations, seed)]


def test_the_same_seed_and_months_make_the_same_rows_and_others_do_not() -> None:
    assert drawn() == drawn()
    assert drawn(seed=2) != drawn()
    assert drawn(last=Month(2026, 7)) != drawn()


@pytest.mark.every_server
def test_it_is_loaded_once_whatever_is_asked_for_later(engine: Engine) -> None:
    first = load_demo(engine, LAST, 3, 20)
    assert first.loaded
    assert str(first).startswith("Loaded 20 organizations")
    held = counts(engine)
    again = load_demo(engine, LAST.next(), 6, 40, seed=7)
    assert again == replace(first, loaded=False)
    assert "2026-04 to 2026-06, 20 organizations" in str(again)
    assert counts(engine) == held


def test_two_at_once_load_it_once(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda _: load_demo(engine, LAST, 1, 10), range(2)))
    assert sorted(result.loaded for result in results) == [False, True]
    assert counts(engine)["organization"] == 10


def test_it_can_be_taken_back_and_loaded_again(engine: Engine) -> None:
    undo_import(engine, load_demo(engine, LAST, 2, 10).import_id)
    assert counts(engine) == {"organization": 0, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 1}
    assert load_demo(engine, LAST, 2, 10).loaded


def test_a_database_with_other_organizations_is_none_for_a_demo(engine: Engine) -> None:
    load_demo(engine, LAST, 1, 10)
    require_no_others(engine)
    add_organization(engine, external_ref="teatro")
    with pytest.raises(TicketflowError, match="'teatro' in this database is none of its organizations"):
        require_no_others(engine)


@pytest.mark.parametrize("sizes", [{"months": 0}, {"organizations": 0}])
def test_sizes_that_are_not_positive_are_refused(engine: Engine, sizes: dict[str, int]) -> None:
    with pytest.raises(TicketflowError, match=r"at least 1 of its (months|organizations), not 0"):
        load_demo(engine, LAST, **sizes)


def test_any_size_keeps_the_rules_of_an_import(engine: Engine) -> None:
    for number, (months, organizations) in enumerate([(1, 1), (1, 60), (24, 5)]):
        demo = load_demo(engine, LAST, months, organizations, seed=number)
        assert demo.loaded
        undo_import(engine, demo.import_id)


def test_it_streams_a_few_organizations_at_a_time() -> None:
    sizes = Counter[str]()
    for batch in demo_batches(Month(2026, 1), LAST, 120, 1):
        sizes[batch.kind.name] += 1
    assert sizes == {kind.name: 3 for kind in KINDS}


def test_names_are_different_however_many_there_are() -> None:
    names = [cells[1] for name, batch in drawn(last=Month(2026, 1), organizations=3_000) for _, cells in batch
             if name == "organizations"]  # fmt: skip
    assert len(set(names)) == 3_000


@pytest.fixture(scope="module")
def life(server: EmbeddedServer) -> Iterator[Engine]:
    """The default data set, loaded once for all who only look at it."""
    with shared_database(server) as engine:
        load_demo(engine, LAST)
        yield engine


CAPTURES = "money_movement AS m JOIN organization AS o ON o.id = m.organization_id AND kind = 'CAPTURE' AND NOT is_void"


def test_it_has_the_size_of_a_year(life: Engine) -> None:
    held = counts(life)
    assert held["organization"] == 400
    assert 20_000 <= held["reservation"] <= 40_000
    assert held["event"] > 1_000
    assert held["money_movement"] > 0.8 * held["reservation"]


def test_a_few_organizations_sell_most(life: Engine) -> None:
    sold = [row.count for row in rows(life, "SELECT count(*) FROM money_movement GROUP BY organization_id ORDER BY 1")]
    assert sum(sold[-40:]) > 0.4 * sum(sold)
    assert sold[len(sold) // 2] < sum(sold) / len(sold)


def test_currencies_without_with_two_and_with_three_decimals_are_sold_in(life: Engine) -> None:
    query = f"SELECT DISTINCT exponent FROM {CAPTURES} JOIN currency ON code = m.currency ORDER BY 1"
    assert [row.exponent for row in rows(life, query)] == [0, 2, 3]
    assert len(rows(life, f"SELECT DISTINCT m.currency FROM {CAPTURES}")) >= 6


def test_it_is_sold_from_the_far_east_to_the_far_west(life: Engine) -> None:
    zones = {row.timezone for row in rows(life, f"SELECT DISTINCT timezone FROM {CAPTURES}")}
    assert {"Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu", "Europe/Madrid"} <= zones


def test_prices_are_round_and_of_their_place(life: Engine) -> None:
    """A ticket costs between a third and four times what is ordinary there, in whole steps."""
    places = {place.timezone + place.city: place for place in PLACES}
    query = f"SELECT o.timezone || split_part(o.name, ', ', 2) AS place, amount, quantity FROM {CAPTURES}"
    for row in rows(life, f"{query} JOIN reservation AS r ON r.id = m.reservation_id"):
        place, price = places[row.place], row.amount // row.quantity
        assert row.amount % place.step == 0
        assert place.price / 3 <= price <= place.price * 4


def test_every_month_has_sales_and_nothing_happens_outside_the_months(life: Engine) -> None:
    query = "SELECT timezone, occurred_at FROM money_movement JOIN organization AS o ON organization_id = o.id"
    months = Counter(str(Month.of_instant(row.occurred_at, row.timezone)) for row in rows(life, query))
    assert sorted(months) == [str(month) for month in months_between(Month(2025, 7), LAST)]


def test_refunds_chargebacks_and_their_reversals_come_in_later_months_at_the_rates_of_what_they_reverse(
    life: Engine,
) -> None:
    found = rows(
        life,
        """
        SELECT r.kind, count(*) AS later, count(*) FILTER (WHERE r.commission_rate_bps = t.commission_rate_bps) AS same
        FROM money_movement AS r JOIN money_movement AS t ON t.id = r.reverses_id
        WHERE NOT r.is_void AND date_trunc('month', r.occurred_at) > date_trunc('month', t.occurred_at)
        GROUP BY r.kind
        """,
    )
    later = {row.kind: (row.later, row.same) for row in found}
    assert later["REFUND"][0] > 300
    assert later["REFUND"][0] > later["REFUND"][1] > 0, "some platforms keep the commission, most do not"
    assert later["CHARGEBACK"][0] == later["CHARGEBACK"][1] > 20
    assert later["CHARGEBACK_REVERSAL"][0] == later["CHARGEBACK_REVERSAL"][1] > 5


def test_some_organizations_change_their_rate_once(life: Engine) -> None:
    changed = rows(
        life,
        f"""
        SELECT array_agg(DISTINCT m.commission_rate_bps) AS rates, o.commission_rate_bps AS now,
            (array_agg(m.commission_rate_bps ORDER BY occurred_at DESC))[1] AS latest
        FROM {CAPTURES} GROUP BY o.id HAVING count(DISTINCT m.commission_rate_bps) > 1
        """,
    )
    assert len(changed) >= 10
    assert all(len(row.rates) == 2 and row.latest == row.now for row in changed)


def test_some_organizations_come_some_go_and_none_sells_outside_its_time(life: Engine) -> None:
    came, went = rows(
        life,
        "SELECT count(*) FILTER (WHERE joined_on >= '2025-07-01'), count(left_on) FROM organization",
    )[0]
    assert (came > 20, went > 10) == (True, True)
    outside = "m.occurred_at < joined_on - interval '1 day' OR m.occurred_at > left_on + interval '1 day'"
    assert rows(life, f"SELECT m.id FROM {CAPTURES} WHERE {outside}") == []


def test_some_organizations_have_months_without_anything(life: Engine) -> None:
    query = (
        "SELECT count(DISTINCT date_trunc('month', occurred_at)) AS months FROM money_movement GROUP BY organization_id"
    )
    assert sum(row.months < 6 for row in rows(life, query)) > 50
    assert len(rows(life, "SELECT id FROM organization EXCEPT SELECT organization_id FROM money_movement")) > 5


def test_voids_fees_and_entries_by_hand_occur(life: Engine) -> None:
    found = rows(life, "SELECT kind, is_void, count(*) FROM money_movement GROUP BY kind, is_void")
    number = {(row.kind, row.is_void): row.count for row in found}
    assert number["CAPTURE", True] > 20
    assert number["FEE", False] > 300
    assert number["MANUAL", False] > 10


def test_events_lie_ahead_with_reservations_that_are_paid_and_that_are_held(life: Engine) -> None:
    found = rows(
        life,
        """
        SELECT reservation.status, count(*) FROM reservation JOIN event ON event.id = event_id
        WHERE event.status = 'OPEN' AND starts_at > '2026-07-02' AND (
            reservation.status <> 'ACTIVE' OR reservation.expires_at > '2026-07-02')
        GROUP BY reservation.status
        """,
    )
    number = {row.status: row.count for row in found}
    assert number["CONFIRMED"] > 300
    assert number["ACTIVE"] > 10


def test_states_and_money_agree(life: Engine) -> None:
    found = rows(
        life,
        """
        SELECT reservation.status, event.status AS event_status, coalesce(sum(amount), 0) AS kept
        FROM reservation JOIN event ON event.id = event_id LEFT JOIN money_movement ON reservation_id = reservation.id
        GROUP BY reservation.id, event.id
        """,
    )
    for row in found:
        assert (row.kept == 0) if row.status != "CONFIRMED" else (row.kept >= 0)
        assert row.status != "ACTIVE" or row.event_status == "OPEN"
    assert {row.event_status for row in found} == {"OPEN", "CLOSED", "CANCELLED"}
    assert {row.status for row in found} == {"ACTIVE", "CONFIRMED", "EXPIRED", "CANCELLED"}
