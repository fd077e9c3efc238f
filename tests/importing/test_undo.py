"""Taking an import back: all of it, while nothing of it is settled and nothing later builds on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import URL

from tests.support.folders import Story, counts, stored, story, write_folder
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void
from tests.support.settled import settle
from tests.support.sql_statements import begin_month, post
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import Counts, UndoResult, import_folder, undo_import
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.passes import IncompleteSettlementError, begin_or_join, plan, wait_for_writers

FIRST = Month(2026, 1)
GONE = {"organization": 0, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 1}


def brought(engine: Engine, folder: Path, given: Story | None = None) -> int:
    result = import_folder(engine, write_folder(folder, given or story()), FIRST)
    assert result.import_id is not None
    return result.import_id


def id_of(engine: Engine, table: str, ref: str) -> int:
    name = "public_ref" if table == "reservation" else "external_ref"
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT id FROM {table} WHERE {name} = :ref"), {"ref": ref}).scalar_one())


@pytest.mark.every_server
def test_an_undone_import_is_gone_and_can_be_repeated(engine: Engine, tmp_path: Path) -> None:
    import_id = brought(engine, tmp_path)
    before = stored(engine)
    assert undo_import(engine, import_id) == UndoResult(import_id, str(tmp_path), Counts(2, 3, 4, 7))
    assert counts(engine) == GONE
    assert brought(engine, tmp_path) == import_id + 1
    assert stored(engine) == before


def test_only_what_the_import_brought_goes(engine: Engine, tmp_path: Path) -> None:
    given = story()
    brought(engine, tmp_path, given)
    before = stored(engine)
    given["money_movements"].append(given["money_movements"][1] | {"external_ref": "m8"})
    assert undo_import(engine, brought(engine, tmp_path, given)).removed == Counts(0, 0, 0, 1)
    assert stored(engine) == before


def test_an_import_that_is_not_there_or_undone_already_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TicketflowError, match="There is no import 7"):
        undo_import(engine, 7)
    import_id = brought(engine, tmp_path)
    undo_import(engine, import_id)
    with pytest.raises(TicketflowError, match=rf"Import {import_id} was undone at 20\d\d-.* already"):
        undo_import(engine, import_id)


@pytest.mark.every_server
def test_an_import_of_which_something_is_settled_stays(engine: Engine, tmp_path: Path) -> None:
    import_id = brought(engine, tmp_path)
    post(engine, organization_id=str(id_of(engine, "organization", "o2")))
    begin_month(engine, "2026-04-01")
    post(engine, organization_id=str(id_of(engine, "organization", "o1")), month="'2026-04-01'")
    before = counts(engine)
    with pytest.raises(TicketflowError, match="month 2026-03 of organization 'o2' is settled with it"):
        undo_import(engine, import_id)
    assert counts(engine) == before


def test_movements_that_a_settlement_has_read_stay_though_their_organization_was_there_before(
    engine: Engine, tmp_path: Path
) -> None:
    add_organization(engine, external_ref="o1", commission_tax_bps=2100)
    given = {"money_movements": story()["money_movements"][5:]}
    import_id = brought(engine, tmp_path, given)
    settle(engine, Month(2026, 5))
    with pytest.raises(TicketflowError, match="month 2026-05 of organization 'o1'"):
        undo_import(engine, import_id)


def test_what_a_pass_has_read_as_nothing_stays_too(engine: Engine, tmp_path: Path) -> None:
    add_organization(engine, external_ref="o1", commission_tax_bps=2100)
    settle(engine, Month(2026, 5))
    given = {"money_movements": story()["money_movements"][5:]}
    sale = brought(engine, tmp_path, given)
    with engine.connect() as connection:
        movements = connection.execute(text("SELECT id FROM money_movement ORDER BY id")).scalars().all()
    for movement in movements:
        add_void(engine, movement)
    assert settle(engine, Month(2026, 5)).changed_nothing
    with pytest.raises(TicketflowError, match="is settled with it; correct it by further movements"):
        undo_import(engine, sale)


def test_movements_that_came_after_the_settlement_can_be_taken_back(engine: Engine, tmp_path: Path) -> None:
    post(engine, organization_id=str(add_organization(engine, external_ref="o1")))
    given = {"money_movements": story()["money_movements"][5:]}
    assert undo_import(engine, brought(engine, tmp_path, given)).removed == Counts(0, 0, 0, 2)


def test_nothing_is_taken_back_while_a_run_settles_a_month(engine: Engine, tmp_path: Path) -> None:
    import_id = brought(engine, tmp_path)
    plan(engine, begin_or_join(engine, Month(2026, 3))[0], 20_000)
    with engine.connect() as worker:
        worker.execute(text("SELECT FROM settlement_chunk FOR UPDATE"))
        with pytest.raises(TicketflowError, match="cannot be undone while month 2026-03 is being settled"):
            undo_import(engine, import_id)
    assert counts(engine)["money_movement"] == 7


def test_a_pass_that_was_left_running_stands_in_the_way_of_no_undo(engine: Engine, tmp_path: Path) -> None:
    import_id = brought(engine, tmp_path)
    plan(engine, begin_or_join(engine, Month(2026, 3))[0], 20_000)
    begin_or_join(engine, Month(2026, 2))
    undo_import(engine, import_id)
    assert counts(engine) == GONE
    assert settle(engine, Month(2026, 3)).rows == 0


def test_a_settlement_that_begins_meanwhile_waits_for_the_undo(engine: Engine, url: URL, tmp_path: Path) -> None:
    """The pass takes its cutoff, then waits for every holder of a writer's lock on the movements."""
    import_id = brought(engine, tmp_path)
    undoing = connect_engine(url, "undoing")
    waited: list[bool] = []

    @event.listens_for(undoing, "after_cursor_execute")
    def look(*arguments: Any) -> None:
        if "settlement_pass" in arguments[2]:
            settlement, _ = begin_or_join(engine, Month(2026, 3))
            with pytest.raises(IncompleteSettlementError, match="undoing"):
                wait_for_writers(engine, settlement, 0.1)
            waited.append(True)

    undo_import(undoing, import_id)
    undoing.dispose()
    assert waited
    assert counts(engine) == GONE


def later_event(engine: Engine) -> None:
    add_event(engine, id_of(engine, "organization", "o2"))


def later_reservation(engine: Engine) -> None:
    add_reservation(engine, id_of(engine, "event", "e1"))


def later_reversal(engine: Engine) -> None:
    reversal: dict[str, Any] = {"kind": "REFUND", "commission_tax_bps": 2100}
    reversal["reverses_id"] = id_of(engine, "money_movement", "m1")
    add_movement(engine, id_of(engine, "organization", "o1"), -1, "2026-06-01T00:00", **reversal)


def later_sale(engine: Engine) -> None:
    add_movement(
        engine, id_of(engine, "organization", "o1"), 1, "2026-06-01T00:00",
        reservation_id=id_of(engine, "reservation", "r1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build_on", "table", "parent"),
    [
        (later_event, "event", "organization"),
        (later_reservation, "reservation", "event"),
        (later_reversal, "money_movement", "money_movement"),
        (later_sale, "money_movement", "reservation"),
    ],
)
def test_an_import_that_later_rows_depend_on_stays(
    engine: Engine, tmp_path: Path, build_on: Callable[[Engine], None], table: str, parent: str
) -> None:
    import_id = brought(engine, tmp_path)
    build_on(engine)
    before = counts(engine)
    with pytest.raises(TicketflowError, match=f"a later {table} depends on one of its rows in {parent}"):
        undo_import(engine, import_id)
    assert counts(engine) == before


def test_two_undos_at_once_undo_once(engine: Engine, tmp_path: Path) -> None:
    import_id = brought(engine, tmp_path)

    def attempt(_: int) -> str:
        try:
            return str(undo_import(engine, import_id))
        except TicketflowError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        said = sorted(threads.map(attempt, range(2)), key=len)
    assert "was undone at" in said[0]
    assert said[1].endswith("2 organizations, 3 events, 4 reservations and 7 money movements are gone.")
