"""Statements as they are read: all that a page is made of, so that it can be made when the database is not waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import BinaryIO

from sqlalchemy import Connection

from ticketflow_orch.db.errors import is_one_row_s
from ticketflow_orch.months import Month
from ticketflow_orch.statements.html import MOVEMENTS_SHOWN, page
from ticketflow_orch.statements.model import (
    KindsOfMovements,
    LeftOut,
    Movement,
    Statement,
    UnbalancedStatementError,
    must_add_up,
)
from ticketflow_orch.statements.queries import each_with_its_own, read_movements, read_statements
from ticketflow_orch.statements.tables import movements_table


@dataclass(frozen=True, slots=True)
class Draft:
    """A statement that adds up, with the first of its movements.

    `listed`: from where to where the spool has the list of all of them; None where the page shows them all.
    """

    statement: Statement
    shown: Sequence[Movement]
    kinds: KindsOfMovements
    listed: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Page:
    """A statement's page as it is written to its file; `listed` as in its draft."""

    statement: Statement
    content: bytes
    listed: tuple[int, int] | None


def page_of(draft: Draft | LeftOut, default_locale: str) -> Page | LeftOut:
    """The page of a statement, the same bytes for the same draft; or why there can be none."""
    if isinstance(draft, LeftOut):
        return draft
    try:
        content = page(draft.statement, draft.shown, draft.kinds, default_locale=default_locale)
    except Exception as error:
        if not is_one_row_s(error):
            raise
        return LeftOut.because(error, draft.statement)
    return Page(draft.statement, content, draft.listed)


@contextmanager
def drafts(
    connection: Connection, month: Month, organizations: Sequence[int], spool: BinaryIO | None = None
) -> Iterator[Iterator[Draft | LeftOut]]:
    """The statements of these organizations, by id and currency, each with what it needs or why it cannot be.

    A list of movements that no page shows in full is written to `spool`, where there is one, so that none is in memory.
    What cannot even be read raises.
    """
    statements = read_statements(connection, month, organizations)
    with closing(read_movements(connection, month, organizations)) as movements:
        yield (_drawn(*each, spool) for each in each_with_its_own(statements, movements))


def _drawn(statement: Statement, movements: Iterator[Movement], spool: BinaryIO | None) -> Draft | LeftOut:
    try:
        return _draft(statement, movements, spool)
    except UnbalancedStatementError as error:
        return LeftOut.because(error, statement)


def _draft(statement: Statement, movements: Iterator[Movement], spool: BinaryIO | None) -> Draft:
    must_add_up(statement)
    kinds = KindsOfMovements()
    counted = kinds.counting(movements)
    shown = list(islice(counted, MOVEMENTS_SHOWN))
    further = next(counted, None)
    listed = None
    if further is not None and spool is not None:
        listed = _spooled(spool, statement, chain(shown, (further,), counted))
    deque(counted, maxlen=0)
    kinds.must_match(statement)
    return Draft(statement, shown, kinds, listed)


def _spooled(spool: BinaryIO, statement: Statement, movements: Iterator[Movement]) -> tuple[int, int]:
    start = spool.tell()
    with movements_table(spool, statement) as write:
        write(movements)
    return start, spool.tell()
