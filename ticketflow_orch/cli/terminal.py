"""How commands print: for people on a terminal, in whole lines for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

# Where nobody looks at columns, lines must not be broken to fit eighty of them.
_WIDTH_OF_A_FILE = 200


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr that does not fold lines when they go to a file or a pipe."""
    from rich.console import Console

    target = Console(stderr=stderr, highlight=False)
    if not target.is_terminal:
        target.width = _WIDTH_OF_A_FILE
    return target


@contextmanager
def rows_shown() -> Iterator[Callable[[str, int], None]]:
    """A function that takes the step of a load and its rows done; they are shown on a terminal only."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    target = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda step, rows: bar.update(task, description=f"{step}: {rows:,} rows")


@contextmanager
def steps_shown(total: int) -> Iterator[Callable[[str, str], None]]:
    """A function that takes the step that begins, and how far it is; shown on a terminal only, counted to `total`."""
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    target = console(stderr=True)
    columns = (SpinnerColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=total)
        seen: list[str] = []

        def show(step: str, detail: str) -> None:
            if step not in seen:
                seen.append(step)
            bar.update(task, description=f"{step} {detail}".strip(), completed=len(seen) - 1)

        yield show


def here() -> str:
    """The time zone in which people read instants."""
    from ticketflow_orch.settings import settings

    return settings().business_timezone


def minute(instant: datetime | None) -> str:
    """`instant` as a cell of a table that people read, in the zone `here`; empty where there is none."""
    from ticketflow_orch.months import to_the_minute

    return "" if instant is None else to_the_minute(instant, here())


def moment(instant: datetime | None) -> str:
    """`instant` as a cell of a table, in UTC to the second; empty where there is none."""
    return "" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of cells that are shown as they are, whatever brackets stand in them; columns without a cell go."""
    from rich.table import Table
    from rich.text import Text

    filled = list(rows)
    shown = [place for place in range(len(columns)) if any(row[place] for row in filled)]
    table = Table(*(columns[place] for place in shown), box=None, pad_edge=False)
    for row in filled:
        table.add_row(*(Text(row[place], overflow="fold") for place in shown))
    console().print(table)


def note_limit(listed: int, limit: int, which: str = "first") -> None:
    """Say on stderr that a list was cut off at its `limit`, where it was."""
    if listed == limit:
        typer.echo(f"These are the {which} {limit}; there may be more.", err=True)


def note_unlisted(count: int, fix: str = "name a larger --limit") -> None:
    """Say on stderr that `count` more are not listed, if any, and how to see them."""
    if count > 0:
        typer.echo(f"{count:,} more are not listed; {fix}.", err=True)


def json_lines(rows: Iterable[object]) -> None:
    """Print each dataclass of `rows` as one JSON object a line: instants in ISO 8601, money in minor units.

    Nothing is printed where there is none.
    """
    import json
    from dataclasses import asdict

    for row in rows:
        typer.echo(json.dumps(asdict(row), default=_plain, ensure_ascii=False))  # type: ignore[call-overload]


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
