"""What came back beyond what was taken, and other movements that cannot all be right: taken, settled, and looked at."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.support.anomalous import (
    PRICE,
    SOLD,
    chargeback,
    found,
    only,
    read,
    refund,
    reserve,
    reversals,
    sale,
    won,
    won_twice,
)
from tests.support.audited import audit, broken, said_of
from tests.support.books import FIRST, MARCH, close, settle_and_close, state_of
from tests.support.folders import write_folder
from tests.support.payable import pay_from
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import settle
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import import_folder
from ticketflow_orch.monitoring.obstacles import read_obstacles
from ticketflow_orch.months import Month
from ticketflow_orch.reports.board import read_board
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settlement.anomalies import accept, noted, search

JUNE = instant("2026-06-15T12:00")
PATIENCE = 30
WARNINGS = {"reversed_once", "captured_once", "reversed_afterwards", "dated_by_now"}


def refunded_twice(engine: Engine, hall: int) -> None:
    sold = sale(engine, hall, external_ref="sold")
    for _ in range(2):
        refund(engine, hall, sold, -3_000)


def refunded_and_charged_back(engine: Engine, hall: int) -> None:
    sold = sale(engine, hall, external_ref="sold")
    refund(engine, hall, sold)
    chargeback(engine, hall, sold)


def won_once_too_often(engine: Engine, hall: int) -> None:
    charged = chargeback(engine, hall, sale(engine, hall), external_ref="charged")
    for _ in range(2):
        won(engine, hall, charged)


def won_after_its_void(engine: Engine, hall: int) -> None:
    charged = chargeback(engine, hall, sale(engine, hall), external_ref="charged")
    add_void(engine, charged)
    won(engine, hall, charged)


def refunded_after_its_void(engine: Engine, hall: int) -> None:
    sold = sale(engine, hall, external_ref="sold")
    add_void(engine, sold)
    refund(engine, hall, sold)


def refunded_a_million(engine: Engine, hall: int) -> None:
    refund(engine, hall, sale(engine, hall, external_ref="sold"), -99_999_999)


def refunded_before_it_was_sold(engine: Engine, hall: int) -> None:
    refund(engine, hall, sale(engine, hall), at="2026-01-31T10:00", external_ref="early")


def captured_twice(engine: Engine, hall: int) -> None:
    reservation = reserve(engine, hall)
    for name in ("first", "second"):
        sale(engine, hall, external_ref=name, reservation_id=reservation)


def captured_again_by_a_refund_that_is_voided(engine: Engine, hall: int) -> None:
    reservation = reserve(engine, hall)
    refunded = refund(engine, hall, sale(engine, hall, reservation_id=reservation))
    sale(engine, hall, external_ref="second", reservation_id=reservation)
    add_void(engine, refunded)


WRONG: dict[str, tuple[Callable[[Engine, int], None], tuple[str, str, int]]] = {
    "two refunds": (refunded_twice, ("BEYOND", "sold", 860)),
    "a refund and a chargeback": (refunded_and_charged_back, ("BEYOND", "sold", PRICE)),
    "a chargeback won twice": (won_once_too_often, ("BEYOND", "charged", PRICE)),
    "a chargeback voided and won": (won_after_its_void, ("BEYOND", "charged", PRICE)),
    "a refund of a voided capture": (refunded_after_its_void, ("BEYOND", "sold", PRICE)),
    "a million on 51.40": (refunded_a_million, ("BEYOND", "sold", 99_994_859)),
    "a refund before its sale": (refunded_before_it_was_sold, ("EARLIER", "early", PRICE)),
    "two captures of a reservation": (captured_twice, ("TWICE", "second", PRICE)),
    "a refund that made room, voided": (captured_again_by_a_refund_that_is_voided, ("TWICE", "second", PRICE)),
}


@pytest.mark.every_server
@pytest.mark.parametrize(("build", "wrong"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_right_is_found_before_a_settlement_has_read_it_and_after(
    engine: Engine, hall: int, build: Callable[[Engine, int], None], wrong: tuple[str, str, int]
) -> None:
    build(engine, hall)
    assert found(engine) == [wrong]
    settle(engine)
    assert search(engine) > 0
    assert found(engine) == [wrong]
    with engine.connect() as connection:
        assert (noted(connection).count, noted(connection).example) == (1, "hall")


@pytest.mark.parametrize("case", WRONG)
def test_what_is_voided_is_wrong_no_more(engine: Engine, hall: int, case: str) -> None:
    WRONG[case][0](engine, hall)
    settle(engine)
    search(engine)
    with engine.connect() as connection:
        [last] = connection.execute(text("SELECT max(id) FROM money_movement WHERE NOT is_void")).scalars()
    add_void(engine, last)
    assert found(engine) == []
    settle(engine)
    search(engine)
    with engine.connect() as connection:
        assert noted(connection).count == 0


@pytest.mark.every_server
def test_what_may_well_be_right_is_not_listed(engine: Engine, hall: int) -> None:
    # Refunded in parts to the last cent; charged back, won and charged back again; refunded, voided and refunded.
    sold = sale(engine, hall)
    for part in (-5_000, -140):
        refund(engine, hall, sold, part)
    disputed = sale(engine, hall)
    won(engine, hall, chargeback(engine, hall, disputed))
    chargeback(engine, hall, disputed)
    mistaken = sale(engine, hall)
    add_void(engine, refund(engine, hall, mistaken))
    refund(engine, hall, mistaken)
    # Captured twice, and the one or the other given back; a fee that was voided; what is voided lies ahead no more.
    reservation = reserve(engine, hall)
    refund(engine, hall, sale(engine, hall, reservation_id=reservation))
    sale(engine, hall, reservation_id=reservation)
    add_void(engine, sale(engine, hall, reservation_id=reservation))
    free = {"commission_rate_bps": 0, "commission_tax_bps": 0, "reason": "terminal"}
    add_void(engine, add_movement(engine, hall, -100, SOLD, kind="FEE", **free))
    add_void(engine, sale(engine, hall, at="2041-01-01T00:00"))
    assert found(engine) == []
    settle(engine)
    search(engine)
    assert found(engine, with_accepted=True) == []


def test_a_movement_is_dated_later_than_the_business_time(engine: Engine, hall: int) -> None:
    sale(engine, hall, at="2026-07-01T10:00", external_ref="ahead")
    assert found(engine, now=JUNE) == [("LATER", "ahead", PRICE)]
    assert found(engine, now=instant("2026-07-01T10:00")) == []
    assert said_of(audit(engine, now=JUNE)["dated_by_now"]) == [
        "hall EUR capture ahead of 51.40 is dated 2026-07-01 10:00 UTC, later than now"
    ]


def test_a_movement_dated_ahead_that_was_voided_stands_in_nobodys_way(engine: Engine, hall: int) -> None:
    add_void(engine, sale(engine, hall, at="2041-01-01T00:00"))
    with engine.connect() as connection:
        assert read_obstacles(connection, FIRST, JUNE) == ()


def test_what_is_wrong_is_said_with_references_and_amounts(engine: Engine, hall: int) -> None:
    refunded_before_it_was_sold(engine, hall)
    assert only(engine).what.startswith("refund early of -51.40 is dated 2026-01-31 10:00 UTC, before movement-")
    other = add_organization(engine)
    captured_twice(engine, other)
    charged = chargeback(engine, other, sale(engine, other), external_ref="charged")
    won(engine, other, charged)
    won(engine, other, charged, external_ref="won again")
    assert [one.what for one in read(engine).listed][1:] == [
        "capture second of 51.40: its reservation was captured before, by first",
        "chargeback charged of -51.40: 51.40 more came back than it took, last by won again",
    ]


# --- A folder that came with all of it


def test_reversals_beyond_what_was_taken_are_imported_settled_and_closed_and_listed(
    engine: Engine, tmp_path: Path
) -> None:
    import_folder(engine, write_folder(tmp_path, reversals()), Month(2026, 1))
    listed = [("BEYOND", "sold1", 15_000), ("BEYOND", "sold2", 5_000), ("BEYOND", "sold4", 5_000)]
    listed += [("BEYOND", "charged3", 5_000), ("EARLIER", "back5", 5_000)]
    assert sorted(found(engine)) == sorted(listed)
    settle_and_close(engine, *(Month(2026, number) for number in range(2, 6)))
    assert state_of(engine, Month(2026, 5)) == "CLOSED"
    assert sorted(found(engine)) == sorted(listed)
    asked = {"first_month": Month(2026, 2)}
    assert broken(engine, **asked) == {}
    warned = {name: said_of(verdict) for name, verdict in audit(engine, **asked).items() if verdict.warns}
    assert warned == {
        "reversed_once": [
            "h1 EUR capture sold1 of 50.00: 150.00 more came back than it took, last by back1",
            "h2 EUR capture sold2 of 50.00: 50.00 more came back than it took, last by charged2",
            "h4 EUR capture sold4 of 50.00: 50.00 more came back than it took, last by back4",
            "h3 EUR chargeback charged3 of -50.00: 50.00 more came back than it took, last by won-again3",
        ],
        "reversed_afterwards": [
            "h5 EUR refund back5 of -50.00 is dated 2026-02-10 10:05 UTC, before sold5, which it reverses and which is "
            "dated 2026-05-01 10:05 UTC"
        ],
    }


# --- Where it is shown, and until when


def test_what_is_wrong_stands_in_health_on_the_board_and_in_the_explanation(engine: Engine, hall: int) -> None:
    pay_from(engine, None)
    won_once_too_often(engine, hall)
    settle_and_close(engine, MARCH)
    sale(engine, hall, at="2026-07-01T10:00")
    with engine.connect() as connection:
        said = [f"{one.what}; {one.out}" for one in read_obstacles(connection, FIRST, JUNE)]
        assert said == [
            "movements: 1 that look wrong, of 1 organization, such as hall; `ticketflow anomalies list` shows them, "
            "`ticketflow anomalies accept MOVEMENT` closes what was looked at",
            "movements: 1 dated later than now; `ticketflow anomalies list` names them; void them and enter them again",
        ]
        assert read_board(connection, JUNE, FIRST).anomalies == 1
        assert [one.reference for one in explain(connection, "hall", MARCH).anomalies] == ["charged"]
        assert explain(connection, "hall", MARCH.next()).anomalies == ()


def test_a_reversal_before_its_sale_is_explained_in_both_months(engine: Engine, hall: int) -> None:
    refunded_before_it_was_sold(engine, hall)
    with engine.connect() as connection:
        for month in (Month(2026, 1), MARCH):
            assert [one.reference for one in explain(connection, "hall", month).anomalies] == ["early"]


@pytest.mark.every_server
@pytest.mark.parametrize("searched", [False, True])
def test_what_was_looked_at_is_accepted_until_it_becomes_worse(engine: Engine, hall: int, searched: bool) -> None:
    sold = sale(engine, hall, external_ref="sold")
    refunds = [refund(engine, hall, sold) for _ in range(3)]
    settle(engine)
    if searched:
        search(engine)
    with transaction(engine) as connection:
        assert accept(connection, ["sold"], "eva") == 1
    assert found(engine) == []
    [known] = read(engine, with_accepted=True).listed
    assert (known.reference, known.accepted_by) == ("sold", "eva")
    # Better is not worse.
    add_void(engine, refunds[0])
    settle(engine)
    search(engine)
    assert found(engine) == []
    refund(engine, hall, sold, -1)
    assert found(engine) == [("BEYOND", "sold", PRICE + 1)]
    settle(engine)
    search(engine)
    assert found(engine) == [("BEYOND", "sold", PRICE + 1)]


def test_what_is_not_open_cannot_be_accepted(engine: Engine, hall: int) -> None:
    sale(engine, hall, external_ref="fine")
    sale(engine, hall, at="2041-01-01T00:00", external_ref="ahead")
    for reference, against in (
        ("nobody", "There is no movement 'nobody'"),
        ("fine", "Nothing is open about movement 'fine'"),
        ("ahead", "Nothing is open about movement 'ahead'"),
    ):
        with pytest.raises(TicketflowError, match=against), transaction(engine) as connection:
            accept(connection, [reference], "eva")


def test_what_is_being_recorded_is_waited_for_before_anything_is_accepted(engine: Engine, hall: int) -> None:
    sold = sale(engine, hall, external_ref="sold")
    refund(engine, hall, sold)
    with engine.connect() as connection, connection.begin() as slow:
        connection.execute(
            text("""
                INSERT INTO money_movement (external_ref, organization_id, kind, reverses_id, currency, amount,
                    commission_rate_bps, commission_tax_bps, occurred_at)
                SELECT 'slow', organization_id, 'REFUND', id, currency, -amount, commission_rate_bps,
                    commission_tax_bps, occurred_at
                FROM money_movement WHERE id = :id
            """),
            {"id": sold},
        )
        refund(engine, hall, sold, -1)
        with pytest.raises(TicketflowError, match=r"Still writing movements after 0\.1 s: process"):
            accepted(engine, 0.1)
        with ThreadPoolExecutor(1) as threads:
            accepting = threads.submit(accepted, engine, PATIENCE)
            with pytest.raises(TimeoutError):
                accepting.result(0.2)
            slow.commit()
            assert accepting.result(PATIENCE) == 1
    assert found(engine, with_accepted=True) == [("BEYOND", "sold", PRICE + 1)]
    refund(engine, hall, sold, -1)
    assert found(engine) == [("BEYOND", "sold", PRICE + 2)]


def accepted(engine: Engine, patience: float) -> int:
    with transaction(engine) as connection:
        return accept(connection, ["sold"], "eva", patience)


def test_organizations_are_asked_about_alone_and_long_lists_are_counted(engine: Engine, hall: int) -> None:
    for _ in range(3):
        won_twice(engine, hall)
    other = add_organization(engine)
    won_twice(engine, other)
    assert (read(engine, limit=2).count, len(read(engine, limit=2).listed)) == (4, 2)
    with engine.connect() as connection:
        assert len(explain(connection, "hall", MARCH).anomalies) == 3


def test_an_import_that_is_undone_takes_what_was_wrong_with_it(engine: Engine, hall: int) -> None:
    won_twice(engine, hall)
    settle(engine)
    search(engine)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("DELETE FROM money_movement"))
    assert found(engine) == []
    with engine.connect() as connection:
        assert noted(connection).count == 0


def test_a_month_is_closed_whatever_looks_wrong_in_it(engine: Engine, hall: int) -> None:
    refunded_a_million(engine, hall)
    settle(engine)
    assert not close(engine, MARCH).found_closed
    assert {name for name, verdict in audit(engine).items() if verdict.warns} == {"reversed_once"}
    assert set(audit(engine)) >= WARNINGS
