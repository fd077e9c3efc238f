"""The files of a month's statements: read in chunks of organizations, written whole, the same bytes whenever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, islice

from sqlalchemy import Connection, Engine

from ticketflow_orch.database import transaction
from ticketflow_orch.months import Month
from ticketflow_orch.statements.content import KindsOfMovements, Movement, Statement
from ticketflow_orch.statements.page import MOVEMENTS_SHOWN, movements_file, page
from ticketflow_orch.statements.place import Place, safe_name
from ticketflow_orch.statements.reading import (
    each_with_its_own,
    next_organizations,
    read_movements,
    read_statements,
)
from ticketflow_orch.statements.tables import StatementTables, movements_table

CSV, PARQUET, ORGANIZATIONS = "statements.csv", "statements.parquet", "organizations"


@dataclass(slots=True)
class Written:
    """What has been written: statements, files and their bytes; amounts in minor units by currency."""

    statements: int = 0
    files: int = 0
    size: int = 0
    totals: dict[str, CurrencyTotal] = field(default_factory=dict)

    def count(self, size: int) -> None:
        """One more file."""
        self.files += 1
        self.size += size


@dataclass(slots=True)
class CurrencyTotal:
    """What the statements of one currency come to."""

    exponent: int
    statements: int = 0
    opening: int = 0
    net: int = 0
    returned: int = 0
    due: int = 0
    payable: int = 0
    closing: int = 0

    def add(self, statement: Statement) -> None:
        """Count one more statement."""
        self.statements += 1
        for name in ("opening", "net", "returned", "due", "payable", "closing"):
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

    `progress` is told after each statement how many there are by then.

    Raises:
        UnbalancedStatementError: a statement does not add up; the tables are not written.
    """
    place.remove_forgotten_drafts()
    pages = PageWriter(place, default_locale)
    with ExitStack() as stack:
        csv_file = stack.enter_context(place.writing(str(month), CSV))
        parquet_file = stack.enter_context(place.writing(str(month), PARQUET))
        stated = stack.enter_context(closing(_each_of_month(engine, month, chunk_size)))
        with StatementTables(csv_file, parquet_file) as tables:
            for statement, movements in stated:
                pages.write(statement, movements)
                tables.add(statement)
                progress(pages.written.statements)
        for file in (csv_file, parquet_file):
            pages.written.count(file.tell())
    return pages.written


def _each_of_month(
    engine: Engine, month: Month, chunk_size: int
) -> Generator[tuple[Statement, Iterator[Movement]], None, None]:
    """The month's statements with their movements, a chunk of organizations to a transaction."""
    after = 0
    while True:
        with transaction(engine) as connection:
            organizations = next_organizations(connection, month, after, chunk_size)
            if not organizations:
                return
            statements = read_statements(connection, month, organizations)
            yield from each_with_its_own(statements, read_movements(connection, month, organizations))
        after = organizations[-1]


@dataclass(slots=True)
class PageWriter:
    """Writes statements to `place` one by one, and counts what it has written."""

    place: Place
    default_locale: str
    written: Written = field(default_factory=Written)

    def write(self, statement: Statement, movements: Iterator[Movement]) -> None:
        """Write a statement's page, and the list of its movements where the page does not show them all.

        Raises:
            UnbalancedStatementError: its movements are not what the ledger says; neither file is written.
        """
        kinds = KindsOfMovements()
        counted = kinds.counting(movements)
        shown = list(islice(counted, MOVEMENTS_SHOWN))
        further = next(counted, None)
        *folder, name = page_parts(statement)
        with ExitStack() as stack:
            if further is not None:
                file = stack.enter_context(self.place.writing(*folder, movements_file(statement)))
                with movements_table(file, statement) as write:
                    write(chain(shown, (further,), counted))
                self.written.count(file.tell())
            kinds.must_match(statement)
            rendered = page(statement, shown, kinds, default_locale=self.default_locale)
            stack.enter_context(self.place.writing(*folder, name)).write(rendered)
        self.written.count(len(rendered))
        self.written.statements += 1
        self.written.totals.setdefault(statement.currency, CurrencyTotal(statement.exponent)).add(statement)


def rendered_pages(
    connection: Connection, month: Month, organizations: Sequence[int], default_locale: str
) -> Iterator[tuple[Statement, bytes]]:
    """The statements of these organizations with their pages, byte by byte those that are written to files.

    Raises:
        UnbalancedStatementError: a statement does not add up.
    """
    statements = read_statements(connection, month, organizations)
    movements = read_movements(connection, month, organizations)
    for statement, own in each_with_its_own(statements, movements):
        kinds = KindsOfMovements()
        counted = kinds.counting(own)
        shown = list(islice(counted, MOVEMENTS_SHOWN))
        deque(counted, maxlen=0)
        kinds.must_match(statement)
        yield statement, page(statement, shown, kinds, default_locale=default_locale)
