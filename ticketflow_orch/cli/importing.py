"""`ticketflow import`: history and test data from files, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.session import database
from ticketflow_orch.cli.terminal import console, rows_shown
from ticketflow_orch.errors import InvalidInput

if TYPE_CHECKING:
    from ticketflow_orch.importing import ImportRefused

_KINDS_SHOWN = 50


def import_(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Holds organizations, events, reservations, money_movements, opening_balances as .csv, .csv.gz or "
            ".parquet."
        ),
    ] = None,
    undo: Annotated[
        int | None,
        typer.Option(min=1, max=2**63 - 1, metavar="ID", help="Take back this import, if nothing is settled."),
    ] = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="Do all of it and take it back: nothing is imported.")] = False,
    problems: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all problems there as CSV, not only the first hundred.")
    ] = None,
) -> None:
    """Import a folder, all or nothing; or take an import back with --undo.

    Rows that are there already are left alone. When rows are bad, they are counted by kind, the first hundred are
    listed, and nothing is imported.
    """
    if (folder is None) == (undo is None):
        raise InvalidInput("Name either a folder to import or an import to take back: --undo ID.")
    if undo is not None and (check or problems is not None):
        raise InvalidInput("--check and --problems are about a folder, not about --undo; leave them out.")
    from ticketflow_orch.importing import ImportRefused, import_folder, undo_import
    from ticketflow_orch.months import Month
    from ticketflow_orch.settings import settings

    with database("import") as engine:
        if undo is not None:
            typer.echo(str(undo_import(engine, undo)))
        elif folder is not None:
            try:
                with rows_shown() as progress:
                    result = import_folder(
                        engine,
                        folder,
                        Month.parse(settings().first_month),
                        progress,
                        check=check,
                        problems=problems,
                    )
            except ImportRefused as refusal:
                _list_problems(refusal, problems)
                raise
            typer.echo(str(result))
            for warning in result.warnings:
                typer.echo(f"warning: {warning}", err=True)
            for note in result.notes:
                typer.echo(note)


def _list_problems(refusal: ImportRefused, file: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from ticketflow_orch.importing.folder import escaped

    out = console(stderr=True)
    table = Table("file", "line", "column", "value", "reason", box=None, pad_edge=False)
    for problem in refusal.problems:
        cells = (problem.file, str(problem.line), problem.column, escaped(problem.value), problem.reason)
        # As text: a value may look like rich's markup.
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    out.print(table)
    if len(refusal.problems) > 1:
        summary = Table("rows", "file", "column", "reason", box=None, pad_edge=False)
        for kind in refusal.summary[:_KINDS_SHOWN]:
            counted = (f"{kind.count:,}", kind.file, kind.column, kind.reason)
            summary.add_row(*(Text(cell, overflow="fold") for cell in counted))
        out.print("\nBy file, column and reason:")
        out.print(summary)
    if file is not None:
        out.print(f"All of them are in {file}.", markup=False)
