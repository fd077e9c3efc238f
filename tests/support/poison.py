"""Rows that the database refuses: what the data of one of them would do that no rule has thought of."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.support.sql_statements import execute


def poison(engine: Engine, table: str, condition: str, operation: str = "INSERT") -> None:
    """Writing a row of `table` for which `condition` holds, of its NEW values, divides by zero."""
    execute(
        engine,
        f"""
        CREATE OR REPLACE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; END $$;
        CREATE TRIGGER poison BEFORE {operation} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION poison();
        """,
    )


def refuse(
    engine: Engine,
    table: str,
    condition: str,
    message: str,
    state: str = "P0001",
    *,
    operation: str = "UPDATE",
    at_commit: bool = False,
) -> None:
    """Somebody's trigger on `table` refuses a row for which `condition` holds, with this message and SQLSTATE."""
    kind, when = (
        ("CONSTRAINT TRIGGER refuse AFTER", "DEFERRABLE INITIALLY DEFERRED")
        if at_commit
        else ("TRIGGER refuse BEFORE", "")
    )
    execute(
        engine,
        f"""
        CREATE OR REPLACE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = '{state}'; END IF;
            RETURN NEW;
        END $$;
        DROP TRIGGER IF EXISTS refuse ON {table};
        CREATE {kind} {operation} ON {table} {when} FOR EACH ROW EXECUTE FUNCTION refuse_{table}();
        """,
    )


def cure(engine: Engine, table: str) -> None:
    """Rows of `table` can be written again."""
    execute(engine, f"DROP TRIGGER poison ON {table}")
