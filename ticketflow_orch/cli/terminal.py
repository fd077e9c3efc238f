"""How commands print: for people on a terminal, in whole lines for everything else."""

from __future__ import annotations

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
