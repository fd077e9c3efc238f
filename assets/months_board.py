"""The asset that shows all months at once: how far each is, and what it waits for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.months_picture import months_picture
from resources import ClockResource, DatabaseResource
from ticketflow_orch.dagster_host.dagster_internals import DATA_VERSION_TAG
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.reports.board import Board, BoardMonth, Stage, read_board
from ticketflow_orch.settings import settings

_LINES = 4
# What people ask first comes first: the page cuts wide tables off at the right.
_MONTHS = dg.TableSchema(
    columns=[
        dg.TableColumn("month", "string", "YYYY-MM, the latest first"),
        dg.TableColumn("state", "string", "open, settled, closing or closed"),
        dg.TableColumn("next", "string", "what is to happen next; empty: nothing"),
        dg.TableColumn(
            "paid", "string", "its payouts: settled elsewhere, not yet, all, or how many are not confirmed, and why"
        ),
        dg.TableColumn("issued", "string", "whether its statements are issued"),
        dg.TableColumn("late", "string", "adjustments about it, wherever posted; organizations whose is not posted"),
        dg.TableColumn("parked", "string", "organizations that are parked in it now"),
    ]
)


@dg.asset(
    group_name="overview",
    owners=["team:finance"],
    kinds={"postgres"},
    tags={"domain": "settlement"},
)
def months_board(database: DatabaseResource, clock: ClockResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """The last months and how far each is: open, settled, closed, paid, issued; what came late, who is parked.

    Kept current by the sensor `board_watch`, a minute after anything changed; materializing it by hand does no
    harm and is seldom needed.
    """
    board = look(database, clock)
    return dg.MaterializeResult(metadata=board_metadata(board), data_version=dg.DataVersion(board.version))


def look(database: DatabaseResource, clock: ClockResource) -> Board:
    """The board as the settings and the database have it."""
    with database.engine("months_board", connections=1) as engine, engine.connect() as connection:
        return read_board(connection, clock.now(), Month.parse(settings().first_month))


def materialization(board: Board) -> dg.AssetMaterialization:
    """What a run of the asset would have reported."""
    return dg.AssetMaterialization(
        months_board.key, metadata=board_metadata(board), tags={DATA_VERSION_TAG: board.version}
    )


def shown_version(instance: dg.DagsterInstance) -> str | None:
    """The version of the board that the pages show; None when they show none."""
    event = instance.get_latest_materialization_event(months_board.key)
    shown = event.asset_materialization if event is not None else None
    return shown.tags.get(DATA_VERSION_TAG) if shown is not None and shown.tags else None


def board_metadata(board: Board) -> dict[str, Any]:
    """The metadata of a board: in a sentence, as a picture, as a table."""
    metadata: dict[str, Any] = {"summary": dg.MetadataValue.md(_summary(board))}
    if board.months:
        metadata["picture"] = dg.MetadataValue.md(months_picture(board))
    if board.anomalies:
        wrong = f"**{counted(board.anomalies, 'movement')} to look at**: `ticketflow anomalies list` says what is wrong"
        metadata["anomalies"] = dg.MetadataValue.md(f"{wrong}.")
    metadata["months"] = dg.MetadataValue.table(
        [dg.TableRecord(_cells(month, board.payouts_from)) for month in reversed(board.months)], _MONTHS
    )
    metadata["net"] = _nets(board)
    states = [month.state for month in board.months]
    return metadata | {f"{state} months": states.count(state.upper()) for state in ("open", "settled", "closed")}


def _summary(board: Board) -> str:
    """What is red first, then what is late, then how the other months are: a line for each."""
    if not board.months:
        return "No month is over yet in which anybody sold anything."
    red = [month for month in board.months if month.needs_a_person]
    late = [month for month in board.months if month.waiting]
    busy = [month for month in board.months if month.next_step and month not in red]
    lines = [
        *_some(red, lambda month: f"**{month.month}: {month.next_step}.**", "need a person"),
        *([f"**{counted(board.parked, 'organization')} parked.**"] if board.parked else []),
        *_some(late, _late_money, "have late money"),
    ]
    if busy:
        more = {1: "", 2: " One more month waits."}.get(len(busy), f" {len(busy) - 1} more months wait.")
        lines.append(f"**{busy[0].month}:** {busy[0].next_step}.{more}")
    return "\n\n".join(lines) or f"**Nothing is left to do.** The last month is {board.months[-1].month}."


def _late_money(month: BoardMonth) -> str:
    return f"{month.month}: late money of {counted(month.waiting, 'organization')} waits to be posted."


def _some(months: Sequence[BoardMonth], line: Callable[[BoardMonth], str], what: str) -> Iterator[str]:
    """A line for each of the first months, and one that counts the others: a page shows a short text only."""
    yield from map(line, months[:_LINES])
    if len(months) > _LINES:
        yield f"{counted(len(months) - _LINES, 'more month')} {what}."


def _cells(month: BoardMonth, payouts_from: Month | None) -> Mapping[str, str]:
    return {
        "month": str(month.month),
        "state": month.state.lower(),
        "next": month.next_step,
        "paid": _paid(month, payouts_from),
        "issued": "yes" if month.issued is Stage.DONE else "",
        "late": _late(month),
        "parked": _count(month.parked),
    }


def _late(month: BoardMonth) -> str:
    waiting = f"{month.waiting:,} not posted" if month.waiting else ""
    return ", ".join(filter(None, (_count(month.late), waiting)))


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _nets(board: Board) -> dg.TableMetadataValue:
    """What was posted in each month, adjustments of earlier ones included, by currency, and for how many."""
    currencies = sorted({total.currency for month in board.months for total in month.totals})
    records = [
        dg.TableRecord(
            {
                "month": str(month.month),
                **dict.fromkeys(currencies, ""),
                **{total.currency: written_out(total.net, total.exponent) for total in month.totals},
                "organizations": _count(month.organizations),
            }
        )
        for month in reversed(board.months)
    ]
    columns = [dg.TableColumn(name) for name in ("month", *currencies, "organizations")]
    return dg.MetadataValue.table(records, dg.TableSchema(columns=columns))


def _paid(month: BoardMonth, payouts_from: Month | None) -> str:
    payouts = month.payouts
    counts = {
        "in doubt": payouts.in_doubt,
        "held": payouts.held,
        "waiting": payouts.requested,
        "came back": payouts.came_back,
    }
    waiting = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if waiting or month.state != "CLOSED":
        return waiting
    nobody = "payouts are off" if payouts_from is None else "settled elsewhere"
    return {Stage.NONE: nobody, Stage.DONE: "all"}.get(month.paid, "not yet")
