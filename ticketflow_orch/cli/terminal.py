"""How commands print: for people on a terminal, in whole lines for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    """Something to tell the step of a load and its rows done; shown on a terminal only."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    target = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda step, rows: bar.update(task, description=f"{step}: {rows:,} rows")
