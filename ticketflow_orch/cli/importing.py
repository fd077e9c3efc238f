"""`ticketflow import`: history and test data from files, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.session import database
from ticketflow_orch.cli.terminal import console, rows_shown
from ticketflow_orch.errors import InputError

if TYPE_CHECKING:
    from ticketflow_orch.importing import ImportRefused


def import_(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Holds organizations, events, reservations, money_movements, opening_balances as .csv, .csv.gz or "
            ".parquet."
        ),
    ] = None,
    undo: Annotated[
        int | None, typer.Option(metavar="ID", help="Take back this import, if nothing is settled.")
    ] = None,
) -> None:
    """Import a folder, all or nothing; or take an import back with --undo.

    Rows that are there already are left alone. When rows are bad, each is listed and nothing is imported.
    """
    if (folder is None) == (undo is None):
        raise InputError("Name either a folder to import or an import to take back: --undo ID.")
    from ticketflow_orch.importing import ImportRefused, import_folder, undo_import
    from ticketflow_orch.months import Month
    from ticketflow_orch.settings import settings

    with database("import") as engine:
        if undo is not None:
            typer.echo(str(undo_import(engine, undo)))
        elif folder is not None:
            try:
                with rows_shown() as progress:
                    result = import_folder(engine, folder, Month.parse(settings().first_month), progress)
            except ImportRefused as refusal:
                _list_problems(refusal)
                raise
            typer.echo(str(result))
            for warning in result.warnings:
                typer.echo(f"warning: {warning}", err=True)


def _list_problems(refusal: ImportRefused) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("file", "line", "column", "value", "reason", box=None, pad_edge=False)
    for problem in refusal.problems:
        cells = (problem.file, str(problem.line), problem.column, problem.value, problem.reason)
        # As text: a value may look like rich's markup.
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    console(stderr=True).print(table)
