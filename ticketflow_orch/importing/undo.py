"""Taking an import back, as long as nothing of it has been settled and nothing later builds on it."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.errors import ForeignKeyViolation
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.errors import is_a, is_locked
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import Conflict, InvalidInput, PreconditionFailed
from ticketflow_orch.importing.format import KINDS
from ticketflow_orch.importing.import_lock import import_turn, vacuum
from ticketflow_orch.importing.loading import Counts
from ticketflow_orch.periods.state import PERIODS

_SETTLED = sql(__file__, "settled", periods=PERIODS)
_LET_GO = sql(__file__, "let_go")
_DELETE = {kind.table: sql(__file__, "delete", table=kind.table) for kind in KINDS}
_BALANCED = """
    SELECT organization.external_ref, balance_month FROM opening_balance
    JOIN organization ON organization.id = organization_id
    WHERE opening_balance.import_id = %(import_id)s::bigint AND balance_month IS NOT NULL
    ORDER BY balance_month, organization.external_ref
    LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class UndoResult:
    """The import that was undone, and the rows that went with it."""

    import_id: int
    source: str
    removed: Counts

    def __str__(self) -> str:
        return f"Import {self.import_id} of {self.source} is undone: {self.removed} are gone."


def undo_import(engine: Engine, import_id: int) -> UndoResult:
    """Delete all that import `import_id` brought.

    Raises:
        InvalidInput: there is no such import.
        PreconditionFailed: it was undone before, something of it is settled, or rows that came later depend on it.
        Conflict: a run settles at this moment, or another import keeps its turn. Nothing was deleted then.
    """
    with import_turn(engine, deletes=True) as connection:
        source = _require_there(connection, import_id)
        _require_unsettled(connection, import_id)
        _let_go_of_passes(connection, import_id)
        removed = Counts(**{kind.name: _delete(connection, kind.table, import_id) for kind in reversed(KINDS)})
        connection.exec_driver_sql(
            "UPDATE data_import SET undone_at = clock_timestamp() WHERE id = %(import_id)s::bigint",
            {"import_id": import_id},
        )
    vacuum(engine, removed.tables())
    return UndoResult(import_id, source, removed)


def _require_there(connection: Connection, import_id: int) -> str:
    row = connection.exec_driver_sql(
        "SELECT source, undone_at FROM data_import WHERE id = %(import_id)s::bigint",
        {"import_id": import_id},
    ).one_or_none()
    if row is None:
        raise InvalidInput(f"There is no import {import_id}; the table data_import lists those there are.")
    if row.undone_at is not None:
        raise PreconditionFailed(
            f"Import {import_id} was undone at {row.undone_at.isoformat(timespec='seconds')} already."
        )
    return str(row.source)


def _require_unsettled(connection: Connection, import_id: int) -> None:
    settled = connection.exec_driver_sql(_SETTLED, {"import_id": import_id}).one_or_none()
    if settled is not None:
        raise PreconditionFailed(
            f"Import {import_id} cannot be undone: month {settled.month:%Y-%m} of organization "
            f"{settled.external_ref!r} is settled with it; correct it by further movements."
        )
    balanced = connection.exec_driver_sql(_BALANCED, {"import_id": import_id}).one_or_none()
    if balanced is not None:
        raise PreconditionFailed(
            f"Import {import_id} cannot be undone: the books of {balanced.balance_month:%Y-%m} open with what it "
            f"brought for organization {balanced.external_ref!r}; correct it by a MANUAL movement."
        )


def _let_go_of_passes(connection: Connection, import_id: int) -> None:
    """Give up the passes that are left running: what they have not read is about to go.

    Raises:
        Conflict: a run works on one of them at this moment.
    """
    month = connection.exec_driver_sql("SELECT min(month) FROM settlement_pass WHERE state = 'RUNNING'").scalar_one()
    if month is None:
        return
    try:
        connection.exec_driver_sql(_LET_GO)
    except DBAPIError as error:
        if not is_locked(error):
            raise
        raise Conflict(
            f"Import {import_id} cannot be undone while month {month:%Y-%m} is being settled; try again afterwards."
        ) from error


def _delete(connection: Connection, table: str, import_id: int) -> int:
    try:
        return connection.exec_driver_sql(_DELETE[table], {"import_id": import_id}).rowcount
    except DBAPIError as error:
        if not is_a(error, ForeignKeyViolation):
            raise
        diagnosis = getattr(error.orig, "diag", None)
        raise PreconditionFailed(
            f"Import {import_id} cannot be undone: a later {getattr(diagnosis, 'table_name', 'row')} depends on "
            f"one of its rows in {table} ({getattr(diagnosis, 'message_detail', '')})"
        ) from error
