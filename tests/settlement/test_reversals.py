"""What came back beyond what was taken, and other movements that cannot all be right: taken, settled, and looked at."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.db.test_ledger_plans import plan_of
from tests.settlement.test_plan import Node, add_movements, scans_of
from tests.settlement.test_settlement import settle
from tests.support.anomalous import PRICE, SOLD, chargeback, found, only, read, refund, reserve, sale, won, won_twice
from tests.support.audited import audit, broken, said_of
from tests.support.books import APRIL, FIRST, MARCH, close, settle_and_close, state_of
from tests.support.folders import Rows, Story, story, write_folder
from tests.support.payable import close_owing, pay_from, request
from tests.support.rows import add_movement, add_organization, add_void, instant
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import ImportRefused, import_folder
from ticketflow_orch.monitoring.obstacles import read_obstacles
from ticketflow_orch.months import Month
from ticketflow_orch.reports.board import read_board
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settlement.anomalies import accept, noted, search

JUNE = instant("2026-06-15T12:00")
PATIENCE = 30
WARNINGS = {"reversed_once", "captured_once", "reversed_afterwards", "dated_by_now"}


@pytest.fixture
def hall(engine: Engine) -> int:
    return add_organization(engine, external_ref="hall")


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


def reversals() -> Story:
    """Halls of the good story that differ in what came back; each sold once for 50.00 in May 2026."""
    told = story()
    organization, sold = told["organizations"][0], told["money_movements"][1] | {"reservation_ref": ""}
    halls = [organization | {"external_ref": f"h{number}", "name": f"Hall {number}"} for number in range(1, 6)]

    def movement(number: int, name: str, kind: str, amount: int, reverses: str = "", **cells: str) -> dict[str, str]:
        return sold | {
            "external_ref": f"{name}{number}", "organization_ref": f"h{number}", "kind": kind, "amount": str(amount),
            "reverses_ref": reverses, **cells,
        }  # fmt: skip

    rows: Rows = [movement(number, "sold", "CAPTURE", 5_000) for number in range(1, 6)]
    rows += [
        movement(1, "back", "REFUND", -20_000, "sold1"),
        movement(2, "back", "REFUND", -5_000, "sold2"),
        movement(2, "charged", "CHARGEBACK", -5_000, "sold2"),
        movement(3, "charged", "CHARGEBACK", -5_000, "sold3"),
        movement(3, "won", "CHARGEBACK_REVERSAL", 5_000, "charged3"),
        movement(3, "won-again", "CHARGEBACK_REVERSAL", 5_000, "charged3"),
        movement(4, "void", "CAPTURE", -5_000, "sold4", is_void="true"),
        movement(4, "back", "REFUND", -5_000, "sold4"),
        movement(5, "back", "REFUND", -5_000, "sold5", occurred_at="2026-02-10T10:05:00Z"),
    ]
    return {"organizations": halls, "money_movements": rows}


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


IMPOSSIBLE = {
    "a void of a void": ({"is_void": "true", "amount": "5000", "reverses_ref": "void4"}, "reverses_ref"),
    "a void of what another voids": ({"is_void": "true", "amount": "-5000", "reverses_ref": "sold4"}, "reverses_ref"),
    "a void of another amount": ({"is_void": "true", "amount": "-4999", "reverses_ref": "sold5"}, "amount"),
    "another organization's": ({"kind": "REFUND", "amount": "-1", "reverses_ref": "sold5"}, "reverses_ref"),
    "another currency": ({"kind": "REFUND", "amount": "-1", "reverses_ref": "sold4", "currency": "USD"}, "currency"),
}


@pytest.mark.parametrize(("cells", "column"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_have_happened_is_refused_at_import_in_one_sentence(
    engine: Engine, tmp_path: Path, cells: dict[str, str], column: str
) -> None:
    told = reversals()
    organization = "h5" if cells["reverses_ref"] == "sold5" and "is_void" in cells else "h4"
    told["money_movements"].append(
        told["money_movements"][0] | {"external_ref": "impossible", "organization_ref": organization} | cells
    )
    with pytest.raises(ImportRefused) as refused:
        import_folder(engine, write_folder(tmp_path, told), Month(2026, 1))
    [problem] = [problem for problem in refused.value.problems if problem.column == column]
    line = len(told["money_movements"]) + 1
    assert (problem.file, problem.line, problem.column, problem.value) == (
        "money_movements.csv", line, column, cells[column],
    )  # fmt: skip


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


# --- The search


def test_a_search_that_was_killed_goes_on_and_notes_nothing_twice(engine: Engine, hall: int) -> None:
    for _ in range(4):
        won_twice(engine, hall)
    settle(engine)

    def die(*arguments: object) -> None:
        if "UPDATE anomaly_search" in str(arguments[2]) and len(chunks) == 2:
            raise KeyboardInterrupt
        chunks.extend([1] if "UPDATE anomaly_search" in str(arguments[2]) else [])

    chunks: list[int] = []
    event.listen(engine, "before_cursor_execute", die)
    with pytest.raises(KeyboardInterrupt):
        search(engine, chunk_size=3)
    event.remove(engine, "before_cursor_execute", die)
    assert search(engine, chunk_size=3) == 10
    assert len(found(engine)) == 4
    assert search(engine) == 0


def test_a_search_reads_what_settlements_have_read_and_no_more(engine: Engine, hall: int) -> None:
    won_twice(engine, hall)
    assert search(engine) == 0
    settle(engine)
    won_twice(engine, hall)
    assert search(engine) == 4
    assert len(found(engine)) == 2
    with engine.connect() as connection:
        assert noted(connection).count == 1


@pytest.mark.every_server
def test_of_two_years_a_request_reads_only_what_came_since_the_last_search_and_what_looks_wrong(
    engine: Engine,
) -> None:
    add_movements(engine, months=24)
    settle(engine)
    assert search(engine) > 40_000
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE)")
    won_twice(engine, 7)
    settle(engine)
    close_owing(engine, dict.fromkeys(range(1, 801), 20_000), APRIL)
    plans: list[tuple[str, Node]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note_plan(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "money_movement" in statement:
            plans.append((statement, plan_of(cursor, statement, parameters)))

    assert request(engine, APRIL).anomalous == 1
    event.remove(engine, "before_cursor_execute", note_plan)
    assert len(plans) >= 3
    for statement, plan in plans:
        for scan in scans_of(plan, "money_movement"):
            assert scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) <= 20, statement


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
