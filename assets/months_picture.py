"""The board as a picture: a row for each step, a cell for each month, coloured by how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from assets.pictures import SHOWN_IN_PLACE, markdown_picture
from ticketflow_orch.months import Month
from ticketflow_orch.reports.board import Board, BoardMonth, Stage

# Pixels from one cell to the next; in the picture itself it is the unit, so that a cell is drawn in a few characters.
_SLOT = 18
# How wide the names of the steps are.
_LABELS = 3
# A later month's name would run into the year below the next January.
_LAST_WITH_ROOM = 10
_LEGEND = "\n\ngreen done, blue in progress or late, red stuck"
# Readable on the light pages and on the dark ones, and by their height where colours are not told apart.
_STROKES = {
    Stage.NOT_YET: ("#888", ".1"),
    Stage.IN_PROGRESS: ("#4f8ff7", ".4"),
    Stage.ATTENTION: ("#e5484d", ".8"),
    Stage.DONE: ("#30a46c", ".8"),
}


def months_picture(board: Board) -> str:
    """Markdown: the months of `board`, which is not empty; the latest of them where all would not be drawn in place."""
    months = board.months
    while len(picture := _picture(months)) >= SHOWN_IN_PLACE:
        months = months[1:]
    return picture


def _picture(months: Sequence[BoardMonth]) -> str:
    rows = (
        ("settled", [one.settled for one in months]),
        ("closed", [one.closed for one in months]),
        ("paid", [one.paid for one in months]),
        ("issued", [one.issued for one in months]),
        ("late", [Stage.IN_PROGRESS if one.late or one.waiting else Stage.NONE for one in months]),
        ("parked", [Stage.ATTENTION if one.parked else Stage.NONE for one in months]),
    )
    drawn = dict.fromkeys(_STROKES, "")
    for number, (_, stages) in enumerate(rows, 1):
        for stage, first, count in _runs(stages):
            if stage in drawn:
                drawn[stage] += f"M{_LABELS + first} {number}h{count}"
    paths = "".join(
        f"<path d='{drawn[stage]}' stroke='{colour}' stroke-width='{width}'/>"
        for stage, (colour, width) in _STROKES.items()
        if drawn[stage]
    )
    labels = "".join(f"<text y='{number}.2'>{label}</text>" for number, (label, _) in enumerate(rows, 1))
    width, height = _LABELS + len(months), len(rows) + 1
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_SLOT * width}' viewBox='0 .5 {width} {height}' "
        "font-family='sans-serif' font-size='.6' fill='#888' stroke-dasharray='.9 .1'>"
        f"{paths}{labels}{''.join(_years(months, height))}</svg>"
    )
    return f"{markdown_picture(svg, f'{months[0].month} to {months[-1].month}')}{_LEGEND}"


def _runs(stages: Sequence[Stage]) -> Iterator[tuple[Stage, int, int]]:
    """Each row of equal stages: the stage, where it begins, how long it is. The dashes of one line make its cells."""
    place = 0
    for stage, group in groupby(stages):
        count = sum(1 for _ in group)
        yield stage, place, count
        place += count


def _years(months: Sequence[BoardMonth], y: int) -> Iterator[str]:
    """The year below each January, and the first month where there is room for it."""
    for place, one in enumerate(months):
        label: Month | int | None = one.month.year if one.month.number == 1 else None
        if place == 0 and one.month.number <= _LAST_WITH_ROOM:
            label = one.month
        if label is not None:
            yield f"<text x='{_LABELS + place}' y='{y}.2'>{label}</text>"
