"""From staged rows to the tables: judged as a whole, then inserted as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.importing.currencies import unusual_currencies
from ticketflow_orch.importing.format import (
    EVENTS,
    KINDS,
    MONEY_MOVEMENTS,
    OPENING_BALANCES,
    ORGANIZATIONS,
    RESERVATIONS,
    Batch,
    Kind,
)
from ticketflow_orch.importing.history import history_to_be_paid
from ticketflow_orch.importing.linking import link
from ticketflow_orch.importing.oddities import odd_but_allowed
from ticketflow_orch.importing.problems import ProblemFile
from ticketflow_orch.importing.rules import judge
from ticketflow_orch.importing.staging import Progress, Staging
from ticketflow_orch.months import Month


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of each kind."""

    organizations: int
    events: int
    reservations: int
    money_movements: int
    opening_balances: int = 0

    @property
    def total(self) -> int:
        """Rows of all kinds together."""
        return sum(getattr(self, kind.name) for kind in KINDS)

    def tables(self) -> list[str]:
        """The tables that the rows are in."""
        return [kind.table for kind in KINDS if getattr(self, kind.name)]

    def __str__(self) -> str:
        # Few imports hold opening balances.
        counted = KINDS if self.opening_balances else KINDS[:-1]
        *most, last = (f"{getattr(self, kind.name):,} {kind.name.replace('_', ' ')}" for kind in counted)
        return f"{', '.join(most)} and {last}"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did: rows that are new, and rows that were there with the same content.

    `import_id` is what the new rows carry and an undo asks for; None when nothing was new, or where it was but a check.
    `warnings` are sentences about new rows that were taken and should be looked at, `notes` about what is allowed and
    yet odd.
    """

    import_id: int | None
    source: str
    new: Counts
    existing: Counts
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.new.total:
            rows = f"all {self.existing.total:,} rows are there already" if self.existing.total else "there are no rows"
            return f"Nothing new in {self.source}: {rows}."
        there = f" {self.existing.total:,} more rows were there already." if self.existing.total else ""
        if self.import_id is None:
            return f"Nothing is wrong with {self.source}, and nothing was imported: it would bring {self.new}.{there}"
        return f"Import {self.import_id} of {self.source} brought {self.new}.{there}"


_HOLD_EVENTS = sql(__file__, "hold_events")
_RECORD = sql(__file__, "record")
_EXISTING = {kind: sql(__file__, "existing", table=kind.table) for kind in KINDS}
_INSERT = {
    ORGANIZATIONS: sql(__file__, "insert_organizations"),
    EVENTS: sql(__file__, "insert_events"),
    RESERVATIONS: sql(__file__, "insert_reservations"),
    MONEY_MOVEMENTS: sql(__file__, "insert_money_movements"),
    OPENING_BALANCES: sql(__file__, "insert_opening_balances"),
}


def import_batches(
    connection: Connection,
    source: str,
    batches: Iterable[Batch],
    first_month: Month,
    progress: Progress | None = None,
    *,
    problems: ProblemFile | None = None,
) -> ImportResult:
    """Import all rows of `batches` in the turn that `connection` has (see `import_lock.import_turn`).

    Batches may come in any order and several for one kind; lines number the rows of a kind. `source` says to readers
    of data_import where the rows are from. When nothing is new, nothing is written. `problems` gets all of them
    before ImportRefused is raised.

    Raises:
        ImportRefused: rows are bad; lists them.
        InvalidInput: a batch cannot be read.
    """
    staging = Staging(connection, progress, problems)
    for batch in batches:
        staging.copy(batch)
    link(staging, first_month)
    connection.exec_driver_sql(_HOLD_EVENTS)
    judge(staging)
    staging.findings.refuse_any()
    notes = odd_but_allowed(staging)
    existing = {kind: connection.exec_driver_sql(_EXISTING[kind]).scalar_one() for kind in KINDS}
    new = {kind: staging.rows[kind] - existing[kind] for kind in KINDS}
    import_id = None
    warnings = (*unusual_currencies(connection), *history_to_be_paid(connection))
    if any(new.values()):
        counts = {kind.name: new[kind] for kind in KINDS}
        import_id = connection.exec_driver_sql(_RECORD, {"source": source, **counts}).scalar_one()
        for kind in KINDS:
            if new[kind]:
                connection.exec_driver_sql(_INSERT[kind], {"import_id": import_id})
                staging.report(f"loading {kind.name}", new[kind])
    return ImportResult(import_id, source, _counts(new), _counts(existing), warnings, notes)


def _counts(rows: dict[Kind, int]) -> Counts:
    return Counts(**{kind.name: rows[kind] for kind in KINDS})
