"""The board as the pages show it: a sentence, a picture that is drawn in place, a table; kept current without runs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from urllib.parse import unquote
from xml.etree import ElementTree

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from assets import months_board
from assets.months_picture import months_picture
from assets.pictures import SHOWN_IN_PLACE
from resources import ClockResource, DatabaseResource
from sensors import board_watch
from tests.support.anomalous import won_twice
from tests.support.books import FEBRUARY, JANUARY, add_payout, settle_and_close
from tests.support.payable import pay_from
from tests.support.rows import add_movement, add_organization
from tests.support.settled import settle
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.parking import park
from ticketflow_orch.reports.board import Board, BoardMonth, Stage, WaitingPayouts

NO_PAYOUTS = WaitingPayouts(0, 0, 0, 0)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def resources(url: URL) -> dict[str, object]:
    return {
        "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
        "clock": ClockResource(fixed_at="2026-03-15T12:00:00Z"),
    }


def watch(url: URL, instance: dg.DagsterInstance) -> str | None:
    """Let the sensor look once, as the daemon does; what it says."""
    with dg.build_sensor_context(instance=instance, resources=resources(url)) as context:
        data = board_watch.evaluate_tick(context)
    assert not data.run_requests
    for event in data.asset_events:
        instance.report_runless_asset_event(event)
    return data.skip_message


def shown(instance: dg.DagsterInstance) -> list[dg.AssetMaterialization]:
    """Every board that was ever shown, the latest first."""
    records = instance.fetch_materializations(months_board.key, limit=10).records
    return [record.asset_materialization for record in records if record.asset_materialization is not None]


def month(number: int, **values: object) -> BoardMonth:
    """A month that is closed and paid, its statements issued, and in which nothing came late."""
    defaults = {
        "month": list(months_between(Month(2023, 11), Month(2033, 1)))[number], "state": "CLOSED", "totals": (),
        "late": 0, "parked": 0, "payouts": NO_PAYOUTS, "settled": Stage.DONE, "closed": Stage.DONE, "paid": Stage.DONE,
        "issued": Stage.DONE, "next_step": "",
    }  # fmt: skip
    return BoardMonth(**defaults | values)  # type: ignore[arg-type]


def cells(markdown: str) -> dict[str, list[tuple[int, int]]]:
    """What is drawn, by colour: where each cell of it is, as row and place in the row."""
    address = re.search(r"<data:image/svg\+xml,(.*)>", markdown)
    assert address is not None
    drawn: dict[str, list[tuple[int, int]]] = {}
    for path in ElementTree.fromstring(unquote(address[1])):
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", path.attrib.get("d", "")):
            cells = [(int(y) - 1, int(x) - 3 + place) for place in range(int(length))]
            drawn.setdefault(path.attrib["stroke"], []).extend(cells)
    return drawn


def test_a_materialization_tells_of_every_month_in_a_table(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    pay_from(engine, FEBRUARY)
    organization = add_organization(engine)
    for name in ("2026-01", "2026-02"):
        add_movement(engine, organization, 1_000_000, f"{name}-10T10:00")
    add_movement(engine, organization, 5_000, "2026-01-10T10:00", currency="JPY")
    settle_and_close(engine, JANUARY)
    assert dg.materialize([months_board], instance=instance, resources=resources(url)).success
    metadata = shown(instance)[0].metadata
    assert metadata["summary"].value == "**2026-01:** write its statements. One more month waits."
    assert [dict(record.data) for record in metadata["months"].records] == [
        {
            "month": "2026-02", "state": "open", "next": "settle it", "paid": "", "issued": "", "late": "",
            "parked": "",
        },
        {
            "month": "2026-01", "state": "closed", "next": "write its statements", "paid": "settled elsewhere",
            "issued": "", "late": "", "parked": "",
        },
    ]  # fmt: skip
    assert [dict(record.data) for record in metadata["net"].records] == [
        {"month": "2026-02", "EUR": "", "JPY": "", "organizations": ""},
        {"month": "2026-01", "EUR": "8,800.00", "JPY": "4,400", "organizations": "2"},
    ]
    assert metadata["closed months"].value == metadata["open months"].value == 1


def test_movements_that_look_wrong_are_told_of(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    won_twice(engine, add_organization(engine), at="2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    watch(url, instance)
    assert shown(instance)[0].metadata["anomalies"].value == (
        "**1 movement to look at**: `ticketflow anomalies list` says what is wrong."
    )


def test_the_table_tells_how_many_payouts_are_where(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    organizations = [add_organization(engine) for _ in range(4)]
    for organization in organizations:
        add_movement(engine, organization, 1_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    for organization, state in zip(organizations, ("HELD", "HELD", "IN_DOUBT", "CONFIRMED"), strict=True):
        add_payout(engine, organization, JANUARY, state)
    watch(url, instance)
    cells = shown(instance)[0].metadata["months"].records[-1].data
    assert cells["paid"] == "1 in doubt, 2 held"


def test_before_anybody_has_sold_anything_the_board_says_so(url: URL, instance: dg.DagsterInstance) -> None:
    assert dg.materialize([months_board], instance=instance, resources=resources(url)).success
    metadata = shown(instance)[0].metadata
    assert metadata["summary"].value == "No month is over yet in which anybody sold anything."
    assert "picture" not in metadata


def test_the_sentence_begins_with_what_is_red_then_says_what_is_late(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine)
    add_organization(engine, external_ref="hall-7")
    for name in ("2026-01", "2026-02"):
        add_movement(engine, organization, 1_000, f"{name}-10T10:00")
    settle_and_close(engine, JANUARY)
    add_payout(engine, organization, JANUARY, "HELD")
    add_movement(engine, organization, 1_000, "2026-01-10T10:00")
    park(engine, "hall-7", "a dispute", "ana", JANUARY)
    watch(url, instance)
    assert shown(instance)[0].metadata["summary"].value == (
        "**2026-01: release 1 payout held.**\n\n**1 organization parked.**\n\n"
        "2026-01: late money of 1 organization waits to be posted.\n\n**2026-02:** settle it."
    )
    assert shown(instance)[0].metadata["months"].records[-1].data["late"] == "1 not posted"


def test_the_board_is_shown_anew_when_it_says_something_else_and_only_then(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-01-10T10:00")
    assert watch(url, instance) == "The board has changed."
    assert watch(url, instance) == "The board is as it was."
    settle(engine, JANUARY)
    assert watch(url, instance) == "The board has changed."
    assert watch(url, instance) == "The board is as it was."
    settle(engine, FEBRUARY)
    assert dg.materialize([months_board], instance=instance, resources=resources(url)).success
    assert watch(url, instance) == "The board is as it was."
    assert len(shown(instance)) == 3


def test_what_the_sensor_shows_is_what_a_run_would(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-01-10T10:00")
    watch(url, instance)
    dg.materialize([months_board], instance=instance, resources=resources(url))
    by_run, by_sensor = shown(instance)
    assert by_run.metadata == by_sensor.metadata
    assert by_run.tags is not None
    assert by_sensor.tags is not None
    assert by_run.tags["dagster/data_version"] == by_sensor.tags["dagster/data_version"]


def test_a_board_that_somebody_wiped_is_shown_again(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    watch(url, instance)
    instance.wipe_assets([months_board.key])
    assert watch(url, instance) == "The board has changed."
    assert len(shown(instance)) == 1


def test_each_step_of_a_month_has_a_cell_in_the_colour_of_its_stage() -> None:
    picture = months_picture(
        Board(
            (
                month(0, paid=Stage.ATTENTION),
                month(1, late=3),
                month(2, parked=1, closed=Stage.NOT_YET, paid=Stage.NOT_YET, issued=Stage.NOT_YET),
            )
        )
    )
    green, blue, red, grey = "#30a46c", "#4f8ff7", "#e5484d", "#888"
    assert cells(picture) == {
        grey: [(1, 2), (2, 2), (3, 2)],
        blue: [(4, 1)],
        red: [(2, 0), (5, 2)],
        green: [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 1), (3, 0), (3, 1)],
    }


def test_a_step_that_a_month_never_has_leaves_its_place_empty() -> None:
    drawn = cells(months_picture(Board((month(0, paid=Stage.NONE), month(1)))))
    assert {cell for colour in drawn.values() for cell in colour if cell[0] == 2} == {(2, 1)}


def test_three_years_as_they_usually_are_are_drawn_whole() -> None:
    months = [
        month(number, late=number % 7 == 0, paid=Stage.NONE if number < 12 else Stage.DONE) for number in range(33)
    ]
    months += [month(33, paid=Stage.IN_PROGRESS, issued=Stage.NOT_YET, parked=2)]
    months += [month(n, **dict.fromkeys(("closed", "paid", "issued"), Stage.NOT_YET)) for n in (34, 35)]
    picture = months_picture(Board(tuple(months)))
    assert picture.startswith("![2023-11 to 2026-10]")
    assert len(picture) < SHOWN_IN_PLACE


def test_the_most_restless_months_are_drawn_in_place_as_far_as_there_is_room() -> None:
    chance = random.Random(7)
    months = tuple(
        month(
            number,
            late=chance.randrange(2),
            parked=chance.randrange(2),
            **{name: chance.choice(list(Stage)) for name in ("settled", "closed", "paid", "issued")},
        )
        for number in range(36)
    )
    picture = months_picture(Board(months))
    assert len(picture) < SHOWN_IN_PLACE
    assert re.search(r"^!\[[0-9-]+ to 2026-10\]", picture)
