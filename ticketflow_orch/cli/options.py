"""Options that several commands take, so that they are called and explained alike."""

from __future__ import annotations

from typing import Annotated

import typer

By = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Who decides this; unless given, the account that runs the command."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of a table.")]
