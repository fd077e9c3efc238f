"""Pictures that Dagster's pages draw in place: an SVG image inside Markdown."""

from __future__ import annotations

# The pages show Markdown of a thousand characters or more only behind a link.
SHOWN_IN_PLACE = 1000


def markdown_picture(svg: str, description: str) -> str:
    """Markdown of the picture `svg`, whose quotes are single ones; `description` is read out where it is not seen."""
    address = svg.replace("#", "%23").replace("<", "%3C").replace(">", "%3E")
    return f"![{description}](<data:image/svg+xml,{address}>)"
