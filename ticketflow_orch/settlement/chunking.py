"""Cutting all organizations into chunks of a fixed number, in key order."""

from __future__ import annotations

from sqlalchemy import Connection, text

# Every `size`-th organization begins a chunk. The first chunk begins before all of them and the last is open-ended, for
# organizations that are yet to come.
_CHUNKS = """
    RECURSIVE beginning (id) AS (
        (SELECT id FROM organization ORDER BY id LIMIT 1)
        UNION ALL
        SELECT (SELECT id FROM organization WHERE id >= beginning.id ORDER BY id OFFSET CAST(:size AS bigint) LIMIT 1)
        FROM beginning WHERE id IS NOT NULL
    ), cut (low_id, high_id) AS (
        SELECT CASE row_number() OVER (ORDER BY id) WHEN 1 THEN least(id, 0) ELSE id END,
            lead(id) OVER (ORDER BY id) - 1
        FROM beginning WHERE id IS NOT NULL
    )"""


def cut(connection: Connection, size: int) -> list[tuple[int, int | None]]:
    """The first and the last id of each chunk, in order; the last one has no end."""
    rows = connection.execute(_CUT, {"size": size})
    return [(row.low_id, row.high_id) for row in rows]


_CUT = text(f"WITH {_CHUNKS} SELECT low_id, high_id FROM cut ORDER BY low_id")

PLAN_ALL = text(f"""
    INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id)
    WITH {_CHUNKS}
    SELECT CAST(:month AS date), CAST(:pass AS integer), origin_month, low_id, high_id
    FROM cut CROSS JOIN unnest(CAST(:origins AS date[])) AS origin (origin_month)
""")
