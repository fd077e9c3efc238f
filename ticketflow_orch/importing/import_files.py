"""Importing the files of a folder: found, read, judged and loaded in one turn, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.output_files import ordinary_file
from ticketflow_orch.importing.files import read_files
from ticketflow_orch.importing.folder import escaped, find_files
from ticketflow_orch.importing.import_lock import import_turn, vacuum
from ticketflow_orch.importing.loading import ImportResult, import_batches
from ticketflow_orch.importing.problems import problems_file
from ticketflow_orch.importing.staging import Progress
from ticketflow_orch.months import Month


def import_folder(
    engine: Engine,
    folder: Path,
    first_month: Month,
    progress: Progress | None = None,
    *,
    check: bool = False,
    problems: Path | None = None,
) -> ImportResult:
    """Import the files of `folder`, one for each kind of rows that it brings, as .csv, .csv.gz or .parquet.

    Safe to repeat, and to start twice at once: rows that are there with the same content are counted and left alone.
    Movements before `first_month`, in their organization's own zone, are refused. `progress` is called with what is
    being done and how many rows of it are done. With `check` all of it is done, and taken back at the end. All
    problems, not only the first, are written to the file `problems`; none, if all is well.

    Raises:
        ImportRefused: rows are bad, or are there with other content; lists them.
        InvalidInput: there is nothing to import, or a file cannot be read, or `problems` not written or one of them.
    """
    found = find_files(folder)
    if problems is not None and ordinary_file(problems) in {path.resolve() for path in found.files.values()}:
        raise InvalidInput(f"{problems} is a file of the import; name another one for the problems.")
    with problems_file(problems) as file, import_turn(engine) as connection:
        result = import_batches(
            connection, escaped(str(folder.resolve())), read_files(found.files), first_month, progress, problems=file
        )
        if check:
            connection.rollback()
            result = replace(result, import_id=None)
    vacuum(engine, result.new.tables())
    if found.left_alone:
        result = replace(result, notes=(*result.notes, f"Not looked at: {', '.join(found.left_alone)}."))
    return result
