"""Where rows wait until all of them have been judged: temporary tables, filled by COPY, gone with the transaction.

Every staged row draws its id when it arrives, so that rows of one folder can refer to one another before any of them
is inserted. The views add to each row what its references lead to, in the folder or in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Row, text

from ticketflow_orch.importing.kinds import KINDS, Batch, Column, Kind
from ticketflow_orch.importing.problems import SHOWN, Findings, Problem
from ticketflow_orch.months import Month, known_zones

# What is being done, and how many rows of it are done.
Progress = Callable[[str, int], None]
_ROWS_PER_REPORT = 10_000

# `present` is the row that has the same reference already. An id that is drawn for such a row stays unused.
_VIEWS = """
CREATE TEMP VIEW linked_organization AS
SELECT staged.*, present.id AS present_id
FROM staged_organization AS staged
LEFT JOIN organization AS present ON present.external_ref = staged.external_ref;

CREATE TEMP VIEW linked_event AS
SELECT staged.*, present.id AS present_id, coalesce(stored_organization.id, new_organization.id) AS organization_id
FROM staged_event AS staged
LEFT JOIN event AS present ON present.external_ref = staged.external_ref
LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref;

CREATE TEMP VIEW linked_reservation AS
SELECT staged.*, present.id AS present_id,
    coalesce(stored_event.id, new_event.id) AS event_id,
    coalesce(stored_event.status, new_event.status) AS event_status,
    coalesce(stored_organization.external_ref, new_event.organization_ref) AS organization_ref
FROM staged_reservation AS staged
LEFT JOIN reservation AS present ON present.public_ref = staged.external_ref
LEFT JOIN event AS stored_event ON stored_event.external_ref = staged.event_ref
LEFT JOIN organization AS stored_organization ON stored_organization.id = stored_event.organization_id
LEFT JOIN staged_event AS new_event ON new_event.external_ref = staged.event_ref;

CREATE TEMP VIEW linked_money_movement AS
SELECT staged.*, present.id AS present_id,
    coalesce(stored_organization.id, new_organization.id) AS organization_id,
    coalesce(stored_organization.timezone, new_organization.timezone) AS timezone,
    first_instant.starts_at AS first_instant,
    coalesce(stored_reservation.id, new_reservation.id) AS reservation_id,
    coalesce(stored_seller.external_ref, new_reservation.organization_ref) AS seller_ref,
    coalesce(stored_target.id, new_target.id) AS reverses_id,
    coalesce(stored_target.kind, new_target.kind) AS target_kind,
    coalesce(stored_target.is_void, new_target.is_void) AS target_is_void,
    coalesce(stored_owner.external_ref, new_target.organization_ref) AS target_organization_ref,
    coalesce(CAST(stored_target.currency AS text), new_target.currency) AS target_currency,
    coalesce(stored_target.amount, new_target.amount) AS target_amount,
    coalesce(stored_target.commission_rate_bps, new_target.commission_rate_bps) AS target_rate_bps,
    coalesce(stored_target.commission_tax_bps, new_target.commission_tax_bps) AS target_tax_bps,
    coalesce(stored_target.occurred_at, new_target.occurred_at) AS target_occurred_at
FROM staged_money_movement AS staged
LEFT JOIN money_movement AS present ON present.external_ref = staged.external_ref
LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref
LEFT JOIN first_instant ON first_instant.timezone = coalesce(stored_organization.timezone, new_organization.timezone)
LEFT JOIN reservation AS stored_reservation ON stored_reservation.public_ref = staged.reservation_ref
LEFT JOIN event AS stored_event ON stored_event.id = stored_reservation.event_id
LEFT JOIN organization AS stored_seller ON stored_seller.id = stored_event.organization_id
LEFT JOIN linked_reservation AS new_reservation ON new_reservation.external_ref = staged.reservation_ref
LEFT JOIN money_movement AS stored_target ON stored_target.external_ref = staged.reverses_ref
LEFT JOIN organization AS stored_owner ON stored_owner.id = stored_target.organization_id
LEFT JOIN staged_money_movement AS new_target ON new_target.external_ref = staged.reverses_ref;
"""

_FIRST_INSTANTS = text("""
    CREATE TEMP TABLE first_instant ON COMMIT DROP AS
    SELECT * FROM unnest(CAST(:zones AS text[]), CAST(:instants AS timestamptz[])) AS zone (timezone, starts_at)
""")


class Staging:
    """The staged rows of one import, in the transaction of `connection`, and what was found wrong with them."""

    def __init__(self, connection: Connection, first_month: Month, progress: Progress | None = None) -> None:
        self.connection = connection
        self.findings = Findings()
        self.rows = dict.fromkeys(KINDS, 0)
        self.files = {kind: kind.name for kind in KINDS}
        self._progress = progress or (lambda _step, _rows: None)
        for kind in KINDS:
            columns = ", ".join(f"{column.name} {column.type}" for column in kind.columns)
            connection.exec_driver_sql(
                f"CREATE TEMP TABLE staged_{kind.table} (line bigint, faulty boolean,"
                f" id bigint DEFAULT nextval('{kind.table}_id_seq'), {columns}) ON COMMIT DROP"
            )
        connection.execute(_FIRST_INSTANTS, _first_instants(first_month))
        connection.exec_driver_sql(_VIEWS)

    def report(self, step: str, rows: int) -> None:
        """Tell whoever watches that `rows` rows of `step` are done."""
        self._progress(step, rows)

    def copy(self, batch: Batch) -> None:
        """Stage the rows of `batch`. A bad cell is noted and staged as NULL, its row marked faulty."""
        kind = batch.kind
        self.files[kind] = batch.file
        columns = [kind.column(name) for name in batch.columns]
        names = sql.SQL(", ").join(map(sql.Identifier, ["line", *batch.columns, "faulty"]))
        table = sql.Identifier(f"staged_{kind.table}")
        with self._driver().cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, names)) as copy:
            for line, cells in batch.rows:
                self.rows[kind] += 1
                if self.rows[kind] % _ROWS_PER_REPORT == 0:
                    self.report(f"reading {kind.name}", self.rows[kind])
                if len(cells) != len(columns):
                    self._note(kind, line, "", f"{len(cells)} cells", f"do not fit the header's {len(columns)} columns")
                    continue
                values, faults = _judge(columns, cells)
                for column, value, reason in faults:
                    self._note(kind, line, column, value, reason)
                copy.write_row((line, *values, bool(faults)))
        self.report(f"reading {kind.name}", self.rows[kind])

    def analyze(self) -> None:
        """Tell the planner what has been staged; nobody else does that for a temporary table."""
        self.connection.exec_driver_sql("".join(f"ANALYZE staged_{kind.table};" for kind in KINDS))

    def drop_repeated(self, kind: Kind) -> None:
        """Keep the first of the rows that share a reference within the folder; note the others."""
        found = self.connection.execute(
            text(f"""
                WITH repeated AS (
                    SELECT external_ref, min(line) AS first_line FROM staged_{kind.table}
                    GROUP BY external_ref HAVING count(*) > 1
                ), dropped AS (
                    DELETE FROM staged_{kind.table} AS staged USING repeated
                    WHERE staged.external_ref = repeated.external_ref AND line > first_line
                    RETURNING line, staged.external_ref, first_line
                )
                SELECT line, 'external_ref' AS "column", external_ref AS value,
                    'stands on line ' || first_line || ' already' AS reason, count(*) OVER () AS total
                FROM dropped ORDER BY line LIMIT {SHOWN}
            """)  # noqa: S608
        ).all()
        self.note_rows(kind, found)

    def note_rows(self, kind: Kind, found: Sequence[Row[Any]]) -> None:
        """Note problems that a query found: rows of line, column, value, reason and total, the first ones in order."""
        self.findings.note_first(
            [
                (
                    Problem(self.files[kind], row.line, row.column, row.value or "", row.reason),
                    (KINDS.index(kind), row.line, kind.position(row.column)),
                )
                for row in found
            ],
            found[0].total if found else 0,
        )

    def _note(self, kind: Kind, line: int, column: str, value: str, reason: str) -> None:
        problem = Problem(self.files[kind], line, column, value, reason)
        self.findings.note(problem, (KINDS.index(kind), line, kind.position(column)))

    def _driver(self) -> psycopg.Connection:
        return cast(psycopg.Connection, self.connection.connection.driver_connection)


def _judge(
    columns: Sequence[Column], cells: Sequence[str | None]
) -> tuple[list[str | None], list[tuple[str, str, str]]]:
    """The cells as they are staged, NULL for the bad ones, and the bad ones as (column, value, reason)."""
    values: list[str | None] = []
    faults = []
    for column, cell in zip(columns, cells, strict=True):
        if cell:
            reason = column.check(cell)
            values.append(cell if reason is None else None)
        else:
            reason = None if column.may_be_empty else "must not be empty"
            values.append(column.if_empty)
        if reason is not None:
            faults.append((column.name, cell or "", reason))
    return values, faults


@cache
def _first_instants(month: Month) -> dict[str, list[Any]]:
    zones = sorted(known_zones())
    return {"zones": zones, "instants": [month.window(zone).starts_at for zone in zones]}
