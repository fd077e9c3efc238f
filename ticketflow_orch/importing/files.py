"""Reading an import folder, one file per kind: CSV, gzipped CSV or Parquet, a few thousand rows in memory at a time."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ticketflow_orch.errors import InputError
from ticketflow_orch.importing.kinds import KINDS, Batch, Kind

_ENDINGS = (".csv", ".csv.gz", ".parquet")
_PARQUET_ROWS = 2_048

# A record: where it starts in its file, and its cells. The header comes first.
_Record = tuple[int, Sequence[str | None]]


def find_files(folder: Path) -> dict[str, Path]:
    """The files of `folder` that an import reads, by name of kind. Other files are none of its business.

    Raises:
        InputError: there is no such folder, nothing to import in it, or two files for one kind.
    """
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; name one that holds {KINDS[0].name}.csv and the like.")
    found = {}
    for kind in KINDS:
        files = [folder / f"{kind.name}{ending}" for ending in _ENDINGS if (folder / f"{kind.name}{ending}").is_file()]
        if len(files) > 1:
            names = " and ".join(file.name for file in files)
            raise InputError(f"The folder {folder} holds {names}; keep one file for {kind.name}.")
        if files:
            found[kind.name] = files[0]
    if not found:
        names = ", ".join(kind.name for kind in KINDS)
        raise InputError(
            f"The folder {folder} holds nothing to import; it needs at least one of {names}, "
            f"ending in {', '.join(_ENDINGS)}."
        )
    return found


def read_files(files: dict[str, Path]) -> Iterator[Batch]:
    """The rows of `files`, kind by kind; each batch must be read before the next is asked for.

    Raises:
        InputError: a file cannot be read, is not UTF-8, or its header is not what the kind asks for.
    """
    for kind in KINDS:
        if kind.name not in files:
            continue
        path = files[kind.name]
        with closing(_parquet_records(path) if path.suffix == ".parquet" else _csv_records(path)) as records:
            header = next(records, None)
            if header is None:
                raise InputError(f"{path.name} is empty; its first line must name the columns.")
            columns = [name or "" for name in header[1]]
            _check_header(kind, path.name, columns)
            yield Batch(kind, path.name, columns, records)


def _check_header(kind: Kind, file: str, columns: list[str]) -> None:
    known = [column.name for column in kind.columns]
    for name in columns:
        if name not in known:
            raise InputError(
                f"{file} has an unknown column {name!r}; the columns of {kind.name} are {', '.join(known)}."
            )
        if columns.count(name) > 1:
            raise InputError(f"{file} has the column {name!r} more than once; keep one of them.")
    for column in kind.columns:
        if column.name not in columns and not column.optional:
            raise InputError(f"{file} has no column {column.name!r}; add it, with empty cells where it may be empty.")


def _csv_records(path: Path) -> Generator[_Record]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        reader = csv.reader(_decoded_lines(path.name, file), strict=True)
        start = 1
        try:
            for cells in reader:
                if cells:
                    yield start, cells
                start = reader.line_num + 1
        except csv.Error as error:
            raise InputError(
                f"{path.name} is not well-formed CSV in the row that starts on line {start} ({error}); "
                "look for a quotation mark that is not closed or not doubled."
            ) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path.name} is not a complete gzip file ({error}); make it anew.") from None


def _decoded_lines(file: str, lines: Iterable[bytes]) -> Iterator[str]:
    encoding = "utf-8-sig"
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode(encoding)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{file} is not UTF-8: line {number} holds the byte {line[error.start]:#04x}; save it as UTF-8."
            ) from None
        encoding = "utf-8"


def _parquet_records(path: Path) -> Generator[_Record]:
    try:
        with pq.ParquetFile(path) as file:
            yield 0, file.schema_arrow.names
            done = 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                texts = [
                    _texts(path.name, field.name, cells)
                    for field, cells in zip(batch.schema, batch.columns, strict=True)
                ]
                yield from enumerate(zip(*texts, strict=True), done + 1)
                done += batch.num_rows
    except pa.ArrowInvalid as error:
        raise InputError(f"{path.name} is not a readable Parquet file ({error}); make it anew.") from None


def _texts(file: str, column: str, cells: pa.Array) -> list[str | None]:
    """The cells as the text that would stand in a CSV file."""
    if pa.types.is_floating(cells.type):
        raise InputError(f"{file} holds the column {column!r} as {cells.type}; write whole numbers as int64.")
    if pa.types.is_timestamp(cells.type) and cells.type.tz is not None:
        # As UTC, because to write out another zone's times Arrow would ask the operating system's zone data.
        cells = cells.cast(pa.timestamp(cells.type.unit, "UTC"))
    try:
        texts: list[str | None] = cells.cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{file} holds the column {column!r} as {cells.type}; write it as text.") from None
    return texts
