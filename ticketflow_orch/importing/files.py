"""Reading an import folder, one file per kind: CSV, gzipped CSV or Parquet, a few thousand rows in memory at a time."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from io import BufferedIOBase
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.importing.disguises import HEAD, require_csv, require_gzip, require_parquet
from ticketflow_orch.importing.folder import escaped
from ticketflow_orch.importing.format import KINDS, Batch, Kind

# Of a row, line breaks in its cells included: a few kilobytes unpack to more than any machine has.
LONGEST_ROW = 1 << 20  # bytes
_PARQUET_ROWS = 2_048
# What the reader says of a carriage return, with advice for programmers.
_NEW_LINE = "new-line character"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}

# A record: where it starts in its file, and its cells. The header comes first.
_Record = tuple[int, Sequence[str | None]]


def read_files(files: dict[str, Path]) -> Iterator[Batch]:
    """The rows of `files`, kind by kind; each batch must be read before the next is asked for.

    Raises:
        InvalidInput: a file cannot be read, is not what its name says, is not UTF-8, has a row beyond all bounds, or
            its header is not what the kind asks for.
    """
    for kind in KINDS:
        if kind.name not in files:
            continue
        path = files[kind.name]
        with closing(_records(kind, path)) as records:
            header = next(records, None)
            if header is None:
                raise InvalidInput(f"{path.name} is empty; its first line must name the columns.")
            columns = [name or "" for name in header[1]]
            _check_header(kind, path.name, columns)
            yield Batch(kind, path.name, columns, records)


def _records(kind: Kind, path: Path) -> Generator[_Record]:
    try:
        yield from _parquet_records(path) if path.suffix == ".parquet" else _csv_records(kind, path)
    except OSError as error:
        # Not one of a broken gzip file, which was reported as such.
        raise InvalidInput(f"{path} cannot be read ({error.strerror or error}); let this account read it.") from None


def _check_header(kind: Kind, file: str, columns: list[str]) -> None:
    known = [column.name for column in kind.columns]
    for name in columns:
        if name not in known:
            raise InvalidInput(
                f"{file} has an unknown column {name!r}; the columns of {kind.name} are {', '.join(known)}."
            )
        if columns.count(name) > 1:
            raise InvalidInput(f"{file} has the column {name!r} more than once; keep one of them.")
    for column in kind.columns:
        if column.name not in columns and not column.optional:
            raise InvalidInput(f"{file} has no column {column.name!r}; add it, with empty cells where it may be empty.")


def _csv_records(kind: Kind, path: Path) -> Generator[_Record]:
    with path.open("rb") as raw:
        head = raw.read(HEAD)
        raw.seek(0)
        packed = path.suffix == ".gz"
        if packed:
            require_gzip(path.name, head)
        else:
            require_csv(path.name, head)
        lines = _Lines(kind, path.name, raw if not packed else gzip.GzipFile(fileobj=raw), packed=packed)
        reader = csv.reader(lines, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield lines.start, cells
                lines.next_row()
        except csv.Error as error:
            fault = "a carriage return stands outside of quotation marks" if _NEW_LINE in str(error) else str(error)
            raise InvalidInput(
                f"{path.name} is not well-formed CSV in the row that starts on line {lines.start} ({fault}); "
                "look for a quotation mark that is not closed or not doubled."
            ) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidInput(f"{path.name} is not a complete gzip file ({error}); make it anew.") from None


class _Lines:
    """The lines of a file as text, never more of a row in memory than a row may be long.

    `start` is the line on which the row begins whose lines are being read; `next_row` says that it has ended.
    """

    def __init__(self, kind: Kind, file: str, lines: BufferedIOBase | gzip.GzipFile, *, packed: bool) -> None:
        self.start = 1
        self._kind = kind
        self._file = file
        self._lines = lines
        self._packed = packed
        self._number = 0
        self._length = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._lines.readline(LONGEST_ROW + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._length += len(line)
        if self._number == 1:
            return self._first(line)
        self._require_bounded()
        return self._text(line, "utf-8")

    def next_row(self) -> None:
        """Let the next line begin another row."""
        self.start = self._number + 1
        self._length = 0

    def _first(self, line: bytes) -> str:
        if self._packed:
            require_csv(self._file, line[:HEAD], packed=True)
        self._require_bounded()
        text = self._text(line, "utf-8-sig")
        self._require_commas(text)
        if "\r" in text.rstrip("\r\n"):
            raise InvalidInput(
                f"{self._file} ends its lines with carriage returns alone; save it with line feeds (LF)."
            )
        return text

    def _require_bounded(self) -> None:
        if self._length > LONGEST_ROW:
            raise InvalidInput(
                f"{self._file}: the row that starts on line {self.start} is longer than {LONGEST_ROW:,} bytes, which "
                "no row is; look for a quotation mark that is not closed, or for missing line ends."
            )

    def _require_commas(self, header: str) -> None:
        for separator, name in _SEPARATORS.items():
            cells = [cell.strip(' "') for cell in header.rstrip("\r\n").split(separator)]
            if len(cells) > 1 and any(column.name in cells for column in self._kind.columns):
                raise InvalidInput(f"{self._file} is separated by {name}; separate its cells by commas.")

    def _text(self, line: bytes, encoding: str) -> str:
        try:
            return line.decode(encoding)
        except UnicodeDecodeError as error:
            byte = line[error.start]
            guess = bytes([byte]).decode("cp1252", "ignore")
            likely = f", which is {guess!r} in Latin-1 (Windows-1252), its likely encoding" if guess else ""
            raise InvalidInput(
                f"{self._file} is not UTF-8: line {self._number} holds the byte {byte:#04x}{likely}; save it as UTF-8."
            ) from None


def _parquet_records(path: Path) -> Generator[_Record]:
    with path.open("rb") as raw:
        require_parquet(path.name, raw.read(HEAD))
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
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        fault = " ".join(escaped(str(error)).split())
        raise InvalidInput(f"{path.name} is not a readable Parquet file ({fault}); make it anew.") from None


def _texts(file: str, column: str, cells: pa.Array) -> list[str | None]:
    """The cells as the text that would stand in a CSV file."""
    if pa.types.is_floating(cells.type):
        raise InvalidInput(f"{file} holds the column {column!r} as {cells.type}; write whole numbers as int64.")
    if pa.types.is_timestamp(cells.type) and cells.type.tz is not None:
        # As UTC, because to write out another zone's times Arrow would ask the operating system's zone data.
        cells = cells.cast(pa.timestamp(cells.type.unit, "UTC"))
    try:
        texts = cells.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(f"{file} holds the column {column!r} as {cells.type}; write it as text.") from None
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is not None and longest > LONGEST_ROW:
        raise InvalidInput(
            f"{file} holds a cell of {longest:,} bytes in the column {column!r}; "
            f"shorten it, no cell is longer than {LONGEST_ROW:,}."
        )
    try:
        found: list[str | None] = texts.to_pylist()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{file} holds the byte {error.object[error.start]:#04x} in the column {column!r}, which is not UTF-8; "
            "write its text in UTF-8."
        ) from None
    return found
