"""Faults that pass: connections that are cut within a statement or after a COMMIT, errors of a given class."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event, text

CUT = "PERFORM pg_terminate_backend(pg_backend_pid())"


def raising(sqlstate: str) -> str:
    """The statement of a trigger that fails with `sqlstate`."""
    return f"RAISE EXCEPTION 'as asked' USING ERRCODE = '{sqlstate}'"


def fail(engine: Engine, verb: str, table: str, fault: str = CUT, times: int = 1) -> None:
    """Have the next `times` statements of `verb` on `table` run into `fault`; those after them pass."""
    with engine.begin() as connection:
        connection.execute(
            text(f"""
                CREATE SEQUENCE faults;
                CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    -- What a sequence counts is not rolled back.
                    IF nextval('public.faults') <= {times} THEN {fault}; END IF;
                    RETURN NULL;
                END $$;
                CREATE TRIGGER fail AFTER {verb} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION fail()
            """)
        )


def failures(engine: Engine) -> int:
    """How many statements have come by what `fail` has put there."""
    with engine.connect() as connection:
        row = connection.execute(text("SELECT last_value, is_called FROM faults")).one()
    return int(row.last_value) if row.is_called else 0


@contextmanager
def commits_unanswered(engine: Engine, *numbers: int) -> Iterator[list[int]]:
    """The COMMITs with these numbers, from 1, are carried out and their answers lost, with the connection.

    Yields a list that has how many there were.
    """
    seen = [0]

    def lose(connection: Connection) -> None:
        seen[0] += 1
        if seen[0] in numbers:
            session = connection.connection.driver_connection
            assert session is not None
            session.commit()
            session.close()

    event.listen(engine, "commit", lose)
    try:
        yield seen
    finally:
        event.remove(engine, "commit", lose)


@contextmanager
def cut_at_random(engine: Engine, seed: int, share: float) -> Iterator[list[str]]:
    """Every statement and every COMMIT is cut with the probability `share`; a COMMIT before or after it counted.

    Yields what was cut.
    """
    chance = random.Random(seed)
    cut: list[str] = []

    def at_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if chance.random() < share:
            cut.append(statement)
            close(connection)

    def at_commit(connection: Connection) -> None:
        if chance.random() < share:
            is_kept = chance.random() < 1 / 2
            cut.append(f"COMMIT, {'kept' if is_kept else 'lost'}")
            if is_kept:
                session = connection.connection.driver_connection
                assert session is not None
                session.commit()
            close(connection)

    def close(connection: Connection) -> None:
        session = connection.connection.driver_connection
        assert session is not None
        session.close()

    event.listen(engine, "before_cursor_execute", at_statement)
    event.listen(engine, "commit", at_commit)
    try:
        yield cut
    finally:
        event.remove(engine, "before_cursor_execute", at_statement)
        event.remove(engine, "commit", at_commit)
