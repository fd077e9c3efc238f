"""Rows that the database refuses: what the data of one of them would do that no rule has thought of."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.statements import execute


def poison(engine: Engine, table: str, condition: str, operation: str = "INSERT") -> None:
    """Writing a row of `table` for which `condition` holds, of its NEW values, divides by zero."""
    execute(
        engine,
        f"""
        CREATE OR REPLACE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; END $$;
        CREATE TRIGGER poison BEFORE {operation} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION poison();
        """,
    )


def cure(engine: Engine, table: str) -> None:
    """Rows of `table` can be written again."""
    execute(engine, f"DROP TRIGGER poison ON {table}")
