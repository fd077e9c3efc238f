"""Cutting all organizations into chunks of a fixed number, in key order."""

from __future__ import annotations

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql

# Every `size`-th organization begins a chunk. The first chunk begins before all of them and the last is open-ended, for
# organizations that are yet to come.
_CHUNKS = """
    RECURSIVE beginning (id) AS (
        (SELECT id FROM organization ORDER BY id LIMIT 1)
        UNION ALL
        SELECT (SELECT id FROM organization WHERE id >= beginning.id ORDER BY id OFFSET %(size)s::bigint LIMIT 1)
        FROM beginning WHERE id IS NOT NULL
    ), cut (low_id, high_id) AS (
        SELECT CASE row_number() OVER (ORDER BY id) WHEN 1 THEN least(id, 0) ELSE id END,
            lead(id) OVER (ORDER BY id) - 1
        FROM beginning WHERE id IS NOT NULL
    )"""


def cut(connection: Connection, size: int) -> list[tuple[int, int | None]]:
    """The first and the last id of each chunk, in order; the last one has no end."""
    rows = connection.exec_driver_sql(_CUT, {"size": size})
    return [(row.low_id, row.high_id) for row in rows]


_CUT = sql(__file__, "cut", chunks=_CHUNKS)

PLAN_ALL = sql(__file__, "plan_all", chunks=_CHUNKS)
