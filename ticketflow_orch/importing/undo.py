"""Taking an import back, as long as nothing of it has been settled and nothing later builds on it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from ticketflow_orch.errors import InputError
from ticketflow_orch.importing.kinds import KINDS
from ticketflow_orch.importing.loading import Counts
from ticketflow_orch.importing.turn import import_turn, vacuum

_FOREIGN_KEY_VIOLATION = "23503"

# The same question as the guards on both tables ask, answered with a name.
_SETTLED = text("""
    WITH brought AS (
        SELECT organization_id, min(recorded_at) AS since FROM money_movement
        WHERE import_id = CAST(:import_id AS bigint) GROUP BY organization_id
        UNION ALL
        SELECT id, '-infinity' FROM organization WHERE import_id = CAST(:import_id AS bigint)
    )
    SELECT organization.external_ref, ledger_entry.month
    FROM brought
    JOIN ledger_entry ON ledger_entry.organization_id = brought.organization_id AND posted_at > brought.since
    JOIN organization ON organization.id = brought.organization_id
    ORDER BY ledger_entry.month, organization.external_ref
    LIMIT 1
""")

_BALANCED = text("""
    SELECT organization.external_ref, balance_month FROM opening_balance
    JOIN organization ON organization.id = organization_id
    WHERE opening_balance.import_id = CAST(:import_id AS bigint) AND balance_month IS NOT NULL
    ORDER BY balance_month, organization.external_ref
    LIMIT 1
""")


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
        InputError: there is no such import, it was undone before, something of it is settled, or rows that came later
            depend on it. Nothing was deleted then.
    """
    with import_turn(engine, deletes=True) as connection:
        source = _require_there(connection, import_id)
        _require_unsettled(connection, import_id)
        removed = Counts(**{kind.name: _delete(connection, kind.table, import_id) for kind in reversed(KINDS)})
        connection.execute(
            text("UPDATE data_import SET undone_at = clock_timestamp() WHERE id = CAST(:import_id AS bigint)"),
            {"import_id": import_id},
        )
    vacuum(engine, removed.tables())
    return UndoResult(import_id, source, removed)


def _require_there(connection: Connection, import_id: int) -> str:
    row = connection.execute(
        text("SELECT source, undone_at FROM data_import WHERE id = CAST(:import_id AS bigint)"),
        {"import_id": import_id},
    ).one_or_none()
    if row is None:
        raise InputError(f"There is no import {import_id}; the table data_import lists those there are.")
    if row.undone_at is not None:
        raise InputError(f"Import {import_id} was undone at {row.undone_at.isoformat(timespec='seconds')} already.")
    return str(row.source)


def _require_unsettled(connection: Connection, import_id: int) -> None:
    running = connection.execute(text("SELECT min(month) FROM settlement_pass WHERE state = 'RUNNING'")).scalar_one()
    if running is not None:
        raise InputError(
            f"Import {import_id} cannot be undone while month {running:%Y-%m} is being settled; try again afterwards."
        )
    settled = connection.execute(_SETTLED, {"import_id": import_id}).one_or_none()
    if settled is not None:
        raise InputError(
            f"Import {import_id} cannot be undone: month {settled.month:%Y-%m} of organization "
            f"{settled.external_ref!r} is settled with it; correct it by further movements."
        )
    balanced = connection.execute(_BALANCED, {"import_id": import_id}).one_or_none()
    if balanced is not None:
        raise InputError(
            f"Import {import_id} cannot be undone: the books of {balanced.balance_month:%Y-%m} open with what it "
            f"brought for organization {balanced.external_ref!r}; correct it by a MANUAL movement."
        )


def _delete(connection: Connection, table: str, import_id: int) -> int:
    statement = text(f"DELETE FROM {table} WHERE import_id = CAST(:import_id AS bigint)")  # noqa: S608
    try:
        return connection.execute(statement, {"import_id": import_id}).rowcount
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != _FOREIGN_KEY_VIOLATION:
            raise
        diagnosis = getattr(error.orig, "diag", None)
        raise InputError(
            f"Import {import_id} cannot be undone: a later {getattr(diagnosis, 'table_name', 'row')} depends on "
            f"one of its rows in {table} ({getattr(diagnosis, 'message_detail', '')})"
        ) from error
