"""Amounts of months as a bar chart, small enough to be drawn in place."""

from __future__ import annotations

from collections.abc import Mapping

from assets.pictures import markdown_picture
from ticketflow_orch.months import Month, months_between

MONTHS_SHOWN = 24

_SLOT = 20
_BAR = 14
_HEIGHT = 48
_FOOT = 16
_ONE_LABEL, _TWO_LABELS = 48, 110
# Both are readable on the light pages and on the dark ones.
_BEFORE, _LATEST = "#aaa6f5", "#4f43dd"


def month_chart(amounts: Mapping[Month, int], caption: str) -> str:
    """Markdown: a bar for each of the last months up to the latest in `amounts`, which stands out, and `caption`.

    `amounts` are minor units and not empty; a month without one leaves a gap. Negative bars hang below the line.
    """
    latest = max(amounts)
    months = list(months_between(min(amounts), latest))[-MONTHS_SHOWN:]
    shown = {place: amounts[month] for place, month in enumerate(months) if month in amounts}
    top, bottom = max(0, *shown.values()), min(0, *shown.values())
    scale = (top - bottom) or 1
    line = _HEIGHT * top // scale

    def bar(place: int) -> str:
        amount = shown[place]
        length = max(_HEIGHT * abs(amount) // scale, 1 if amount else 0)
        return f"M{_SLOT * place + _SLOT // 2} {line}v{-length if amount > 0 else length}"

    before = "".join(bar(place) for place in shown if months[place] != latest)
    width, height = max(_SLOT * len(months), _ONE_LABEL), _HEIGHT + _FOOT
    first = months[0] if width >= _TWO_LABELS else ""
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' font-family='sans-serif' "
        "font-size='11' fill='#888'>"
        f"<path d='{before}' stroke='{_BEFORE}' stroke-width='{_BAR}'/>"
        f"<path d='{bar(len(months) - 1)}' stroke='{_LATEST}' stroke-width='{_BAR}'/>"
        f"<path d='M0 {line}h{width}' stroke='#888'/>"
        f"<text y='{height - 2}'>{first}</text>"
        f"<text x='{width}' y='{height - 2}' text-anchor='end'>{latest}</text></svg>"
    )
    return f"{markdown_picture(svg, f'{months[0]} to {latest}')} **{caption}**"
