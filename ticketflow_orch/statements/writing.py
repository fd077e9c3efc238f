"""The files of a month's statements: read in chunks of organizations, written whole, the same bytes whenever.

A chunk is read in one short transaction and written outside of any, so that a place may take its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import BinaryIO

from sqlalchemy import Connection, Engine

from ticketflow_orch.formatting.columns import BALANCE_AMOUNTS
from ticketflow_orch.jobs.batches import InKeyOrder
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.posting import SMALLEST_ID
from ticketflow_orch.statements.drafts import Draft, Page, drafts, page_of
from ticketflow_orch.statements.html import movements_file
from ticketflow_orch.statements.model import LeftOut, Statement
from ticketflow_orch.statements.queries import next_organizations, organization_left_out
from ticketflow_orch.statements.storage import Place, safe_name
from ticketflow_orch.statements.tables import StatementTables

CSV, PARQUET, ORGANIZATIONS = "statements.csv", "statements.parquet", "organizations"
_COPIED_AT_ONCE = 1 << 16


class _NothingWrittenError(Exception):
    pass


@dataclass(slots=True)
class Written:
    """What has been written: statements, files and their bytes; amounts in minor units by currency.

    `left_out`: the statements that could not be.
    """

    statements: int = 0
    files: int = 0
    size: int = 0
    totals: dict[str, CurrencyTotal] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def count(self, size: int) -> None:
        """One more file."""
        self.files += 1
        self.size += size


@dataclass(slots=True)
class CurrencyTotal:
    """What the statements of one currency come to."""

    currency: str
    exponent: int
    statements: int = 0
    opening: int = 0
    net: int = 0
    returned: int = 0
    settled_elsewhere: int = 0
    due: int = 0
    payable: int = 0
    closing: int = 0

    def add(self, statement: Statement) -> None:
        """Count one more statement."""
        self.statements += 1
        for name in BALANCE_AMOUNTS:
            setattr(self, name, getattr(self, name) + getattr(statement, name))


def page_parts(statement: Statement) -> tuple[str, ...]:
    """The name of a statement's page below the place of all statements."""
    folder = safe_name(statement.party.external_ref)
    return str(statement.month), ORGANIZATIONS, folder, f"{statement.currency}.html"


def write_month(
    engine: Engine,
    month: Month,
    place: Place,
    *,
    default_locale: str,
    chunk_size: int,
    progress: Callable[[int], None],
) -> Written:
    """Write every file of the month's statements; the tables take their names when all pages are there.

    A statement that cannot be made is left out of all files, and the others are written. Where that is every one,
    something else is wrong, and the tables that are there stay. `progress` gets, after each statement, how many there
    are by then.
    """
    place.remove_forgotten_drafts()
    pages = PageWriter(place)
    written = pages.written
    with suppress(_NothingWrittenError), ExitStack() as stack:
        csv_file = stack.enter_context(place.writing(str(month), CSV))
        parquet_file = stack.enter_context(place.writing(str(month), PARQUET))
        with StatementTables(csv_file, parquet_file) as tables, TemporaryFile() as spool:
            for draft in _each_of_month(engine, month, chunk_size, spool):
                made = page_of(draft, default_locale)
                if isinstance(made, LeftOut):
                    written.left_out.append(made)
                    continue
                tables.add(made.statement)
                pages.write(made, spool)
                progress(written.statements)
        if written.left_out and not written.statements:
            raise _NothingWrittenError
        for file in (csv_file, parquet_file):
            written.count(file.tell())
    return written


def _each_of_month(engine: Engine, month: Month, chunk_size: int, spool: BinaryIO) -> Iterator[Draft | LeftOut]:
    """The month's statements, a chunk of organizations to a transaction, which is over when the first of them comes.

    `spool` has the long lists of movements of a chunk's statements until the next chunk is read.
    """
    unreadable: list[LeftOut] = []

    def read(connection: Connection, after: int, size: int) -> tuple[int | None, list[Draft | LeftOut]]:
        spool.seek(0)
        organizations = next_organizations(connection, month, after, size)
        if not organizations:
            return None, []
        with drafts(connection, month, organizations, spool) as drawn:
            return organizations[-1], list(drawn)

    def leave_out(connection: Connection, after: int, error: Exception) -> int:
        unreadable.append(organization_left_out(connection, month, after, error))
        return unreadable[-1].organization_id

    for chunk in InKeyOrder(engine, read, leave_out, first=SMALLEST_ID, size=chunk_size).run():
        for drawn in (unreadable, chunk):
            yield from drawn
            # Or it would be in memory beside the next chunk.
            drawn.clear()


@dataclass(slots=True)
class PageWriter:
    """Writes statements to `place` one by one, and counts what it has written."""

    place: Place
    written: Written = field(default_factory=Written)

    def write(self, page: Page, spool: BinaryIO) -> None:
        """Write a statement's page, and from `spool` the list of its movements where the page does not show them."""
        statement = page.statement
        *folder, name = page_parts(statement)
        with ExitStack() as stack:
            if page.listed is not None:
                file = stack.enter_context(self.place.writing(*folder, movements_file(statement)))
                _copy(spool, page.listed, file)
                self.written.count(file.tell())
            stack.enter_context(self.place.writing(*folder, name)).write(page.content)
        self.written.count(len(page.content))
        self.written.statements += 1
        self.written.totals.setdefault(statement.currency, CurrencyTotal(statement.currency, statement.exponent)).add(
            statement
        )


def _copy(spool: BinaryIO, stretch: tuple[int, int], file: BinaryIO) -> None:
    position, end = stretch
    spool.seek(position)
    while position < end:
        position += file.write(spool.read(min(_COPIED_AT_ONCE, end - position)))
