"""Issuing the statements of a month, or those of one organization again: written, mailed, noted.

What writes is imported where it writes: every run loads this module, and few need what pages and tables are made with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from ticketflow_orch.closing.require_closed import require_closed
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import is_one_row_s
from ticketflow_orch.errors import InvalidInput, UnknownOrganization
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.jobs import bad_rows
from ticketflow_orch.jobs.batches import NAMED, BadRow, named
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import mark_stated
from ticketflow_orch.settings import Settings
from ticketflow_orch.statements.mail_queue import queue_mails
from ticketflow_orch.statements.model import LeftOut, StatementsLeftOutError
from ticketflow_orch.statements.storage import Place

if TYPE_CHECKING:
    from ticketflow_orch.statements.drafts import Draft
    from ticketflow_orch.statements.writing import CurrencyTotal

# Under this name statements that are left out are alerted.
_JOB = "settlement_statements"


@dataclass(frozen=True, slots=True)
class StatementOptions:
    """Where statements are put, how they read where an organization has no locale, and from when on they are mailed.

    `mail_from` as in the installation: statements of months that ended before are history; None mails nobody.
    """

    place: Place
    default_locale: str = "en"
    mail_from: datetime | None = None
    # Of so many organizations statements are in memory at a time, each with the movements that its page shows.
    chunk_size: int = 100

    @classmethod
    def configured(cls, settings: Settings) -> StatementOptions:
        """The options that `settings` make.

        Raises:
            InvalidInput: the place of statements cannot be written to.
        """
        return cls(statements_place(settings), settings.mail_locale, settings.mail_from)


@dataclass(frozen=True, slots=True)
class StatementsResult:
    """What issuing a month's statements did. `totals` by currency; `size` in bytes; `mails` are those newly queued.

    `mails_off`: no setting says from when on statements are mailed, so none are.
    """

    month: Month
    statements: int
    files: int
    size: int
    totals: Mapping[str, CurrencyTotal]
    folder: str
    csv: str
    parquet: str
    mails: int
    mails_off: bool
    seconds: float


def statements_place(settings: Settings) -> Place:
    """Where `settings` want statements to be put.

    Raises:
        InvalidInput: nothing that is installed can write there.
    """
    return Place.at(settings.statements_place or settings.home / "statements")


def issue_statements(
    engine: Engine,
    month: Month,
    options: StatementOptions,
    *,
    now: datetime,
    progress: Callable[[int], None] = lambda _: None,
) -> StatementsResult:
    """Write all statements of a CLOSED month, queue their mails, and note that they are issued; may be repeated.

    A repeat writes the same bytes and mails nobody again. A statement that cannot be made stops only itself: it is
    alerted once and tried again by the next run, and until then the month's statements do not count as issued. `now` is
    the business time (aware) of the events; `progress` gets the number of statements written so far.

    Raises:
        PreconditionFailed: the month is not closed; nothing is written.
        StatementsLeftOutError: statements could not be made, or not mailed; all others are written and mailed.
    """
    from ticketflow_orch.statements.writing import CSV, PARQUET, write_month

    started = time.monotonic()
    with engine.connect() as connection:
        require_closed(connection, month, _OF_CLOSED_MONTHS)
    written = write_month(
        engine, month, options.place, default_locale=options.default_locale, chunk_size=options.chunk_size,
        progress=progress,
    )  # fmt: skip
    mails = queue_mails(
        engine, month, now=now, mail_from=options.mail_from, chunk_size=options.chunk_size, left_out=written.left_out
    )
    left_out = [one.row(month) for one in (*written.left_out, *mails.left_out)]
    _note(engine, month, left_out, now)
    if left_out:
        raise StatementsLeftOutError(
            f"The statements of {month} are not all issued: {counted(written.statements, 'statement')} written, "
            f"{len(left_out):,} left out; correct what is wrong, then materialize {_JOB} for {month} again. "
            f"{named(left_out)}"
        )
    return StatementsResult(
        month=month,
        statements=written.statements,
        files=written.files,
        size=written.size,
        totals=dict(sorted(written.totals.items())),
        folder=options.place.address(str(month)),
        csv=options.place.address(str(month), CSV),
        parquet=options.place.address(str(month), PARQUET),
        mails=mails.new,
        mails_off=options.mail_from is None,
        seconds=time.monotonic() - started,
    )


def _note(engine: Engine, month: Month, left_out: Sequence[BadRow], now: datetime) -> None:
    """Write down that the month's statements are issued, or alert those that were left out."""
    with transaction(engine) as connection:
        if not left_out:
            mark_stated(connection, month)
        for row in left_out[:NAMED]:
            bad_rows.note(connection, _JOB, row, now)
        bad_rows.end_others(connection, _JOB, left_out, scope=f"{month} ")


def write_statement(
    engine: Engine, external_ref: str, month: Month, options: StatementOptions, currency: str | None = None
) -> Sequence[str]:
    """Write the statements of one organization again, or that of one `currency`; returns where they are.

    Raises:
        InvalidInput: there is no such organization, or it has no statement of the month.
        PreconditionFailed: the month is not closed.
        StatementsLeftOutError: a statement cannot be made; the others are written.
    """
    from ticketflow_orch.statements.drafts import drafts, page_of
    from ticketflow_orch.statements.writing import PageWriter, page_parts

    found: list[Draft | LeftOut] = []
    with TemporaryFile() as spool:
        organization = _organization(engine, external_ref, month)
        try:
            with transaction(engine) as connection, drafts(connection, month, [organization], spool) as drawn:
                found.extend(drawn)
        except Exception as error:
            if not is_one_row_s(error):
                raise
            found = [LeftOut.altogether(error, organization, external_ref, month)]
        pages = PageWriter(options.place)
        written, left_out = [], []
        for draft in found:
            made = page_of(draft, options.default_locale)
            if isinstance(made, LeftOut):
                if currency is None or made.currency in {"", currency}:
                    left_out.append(made)
            elif currency in {None, made.statement.currency}:
                pages.write(made, spool)
                written.append(options.place.address(*page_parts(made.statement)))
    if left_out:
        raise StatementsLeftOutError(named([one.row(month) for one in left_out]))
    if not written:
        raise InvalidInput(
            f"{external_ref} has no statement of {month}{f' in {currency}' if currency else ''}; "
            "there is one for each currency in which it was active, sold or carried an amount and was not parked."
        )
    return written


def _organization(engine: Engine, external_ref: str, month: Month) -> int:
    """The id of the organization whose statements of `month` are wanted.

    Raises:
        InvalidInput: there is no such organization.
        PreconditionFailed: the month is not closed.
    """
    with engine.connect() as connection:
        require_closed(connection, month, _OF_CLOSED_MONTHS)
        found: int | None = connection.exec_driver_sql(
            "SELECT id FROM organization WHERE external_ref = %(ref)s", {"ref": external_ref}
        ).scalar_one_or_none()
    if found is None:
        raise UnknownOrganization(external_ref)
    return found


_OF_CLOSED_MONTHS = "statements are of closed months"
