"""Cutting all organizations into chunks of a fixed number, in key order."""

from __future__ import annotations

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql


def cut(connection: Connection, size: int) -> list[tuple[int, int | None]]:
    """The first and the last id of each chunk, in order; the last one has no end."""
    rows = connection.exec_driver_sql(_CUT, {"size": size})
    return [(row.low_id, row.high_id) for row in rows]


_CHUNKS = sql(__file__, "chunks")

_CUT = sql(__file__, "cut", chunks=_CHUNKS)

# Binds: month, pass, origins, size.
PLAN_ALL = sql(__file__, "plan_all", chunks=_CHUNKS)
