"""Taking an import back, as long as nothing of it has been settled and nothing later builds on it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError

from ticketflow_orch.db.engine import LOCK_NOT_AVAILABLE
from ticketflow_orch.errors import InputError
from ticketflow_orch.importing.format import KINDS
from ticketflow_orch.importing.import_lock import import_turn, vacuum
from ticketflow_orch.importing.loading import Counts

_FOREIGN_KEY_VIOLATION = "23503"

# The same questions as the guards on both tables ask, answered with a name.
_SETTLED = text("""
    SELECT external_ref, month FROM (
        SELECT organization.external_ref, cut.month
        FROM money_movement
        JOIN organization ON organization.id = organization_id
        JOIN settlement_window AS cut ON cut.timezone = organization.timezone
        WHERE money_movement.import_id = CAST(:import_id AS bigint)
            AND occurred_at >= cut.starts_at AND occurred_at < cut.ends_at
            AND settlement_has_read(money_movement.id, organization_id, cut.month)
        UNION ALL
        SELECT organization.external_ref, period.month
        FROM organization CROSS JOIN settlement_period AS period
        JOIN ledger_entry ON ledger_entry.month = period.month AND ledger_entry.organization_id = organization.id
        WHERE organization.import_id = CAST(:import_id AS bigint)
    ) AS settled
    ORDER BY month, external_ref
    LIMIT 1
""")

# Passes that nobody works on at this moment: they have read nothing of what goes, and the next run begins another.
_LET_GO = text("""
    WITH waiting AS MATERIALIZED (
        SELECT chunk.month, chunk.pass FROM settlement_chunk AS chunk JOIN settlement_pass USING (month, pass)
        WHERE settlement_pass.state = 'RUNNING' AND chunk.state = 'PLANNED'
        ORDER BY chunk.month, chunk.pass, origin_month, low_id
        FOR UPDATE OF chunk NOWAIT
    ), dropped AS (
        DELETE FROM settlement_chunk USING (SELECT DISTINCT month, pass FROM waiting) AS let_go
        WHERE settlement_chunk.month = let_go.month AND settlement_chunk.pass = let_go.pass
            AND settlement_chunk.state = 'PLANNED'
    )
    UPDATE settlement_pass SET state = 'GIVEN_UP', finished_at = clock_timestamp(),
        planned_at = coalesce(planned_at, clock_timestamp())
    WHERE state = 'RUNNING'
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
        _let_go_of_passes(connection, import_id)
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


def _let_go_of_passes(connection: Connection, import_id: int) -> None:
    """Give up the passes that are left running: what they have not read is about to go.

    Raises:
        InputError: a run works on one of them at this moment.
    """
    month = connection.execute(text("SELECT min(month) FROM settlement_pass WHERE state = 'RUNNING'")).scalar_one()
    if month is None:
        return
    try:
        connection.execute(_LET_GO)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
            raise
        raise InputError(
            f"Import {import_id} cannot be undone while month {month:%Y-%m} is being settled; try again afterwards."
        ) from error


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
