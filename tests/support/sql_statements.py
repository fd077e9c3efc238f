"""SQL statements: taken or refused, what Postgres says against them, and how many were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

# A literal that any text column and any instant takes.
STAMP = "'2026-06-01 00:00Z'"
LEDGER_ROW = {
    "organization_id": "1", "month": "'2026-03-01'", "currency": "'EUR'", "origin_month": "'2026-03-01'",
    "sequence": "0", "captures": "100", "refunds": "0", "chargebacks": "0", "fees": "0", "commission": "10",
    "commission_tax": "2", "net": "88", "settlement_pass": "1",
}  # fmt: skip


def execute(engine: Engine, statement: str, **parameters: Any) -> int:
    with engine.begin() as connection:
        return connection.execute(text(statement), parameters).rowcount


def refusal(engine: Engine, statement: str, **parameters: Any) -> str:
    """What Postgres says against the statement."""
    with pytest.raises(DBAPIError) as caught:
        execute(engine, statement, **parameters)
    return str(caught.value.orig)


def insertion(table: str, row: Mapping[str, str]) -> str:
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"


def objection(attempt: Callable[[], Any]) -> str | None:
    """What Postgres says against the attempt; None when it is taken."""
    try:
        attempt()
    except DBAPIError as error:
        return str(error.orig)
    return None


def begin_month(engine: Engine, month: str = "2026-03-01") -> None:
    execute(engine, f"INSERT INTO settlement_period (month) VALUES ('{month}') ON CONFLICT DO NOTHING")


def begin_pass(engine: Engine, month: str = "2026-03-01") -> None:
    begin_month(engine, month)
    execute(engine, f"INSERT INTO settlement_pass (month, pass, cutoff) VALUES ('{month}', 1, 1)")


def post(engine: Engine, **values: str) -> None:
    begin_month(engine)
    execute(engine, insertion("ledger_entry", LEDGER_ROW | values))


def take(engine: Engine, which: str = "true") -> None:
    """Put the pending outbox events for which the condition `which` holds in flight, as a relay does."""
    execute(
        engine,
        f"""
        UPDATE outbox_event SET state = 'INFLIGHT', owner = 'test', attempts = attempts + 1,
            first_attempt_at = coalesce(first_attempt_at, clock_timestamp()),
            lease_until = clock_timestamp() + interval '1 minute'
        WHERE {which}
        """,
    )


def deliver(engine: Engine, at: str, which: str = "true") -> None:
    """Let a relay deliver the pending outbox events for which `which` holds, at the SQL instant `at`."""
    take(engine, which)
    execute(
        engine,
        f"""
        UPDATE outbox_event SET state = 'DELIVERED', ended_at = {at}, available_at = NULL, lease_until = NULL,
            owner = NULL
        WHERE state = 'INFLIGHT' AND {which}
        """,
    )


@contextmanager
def queries(engine: Engine) -> Iterator[list[str]]:
    """The SELECTs and writes that the block sends, without settings of the session."""
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if not statement.startswith("SET "):
            sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def statements_sent() -> Iterator[list[str]]:
    """The statements that anybody in this process sends while the block runs, on whatever engine of Postgres."""
    found: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if connection.dialect.name == "postgresql":
            found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """The statements that are executed while the block runs."""
    with executed(engine) as found:
        statements: list[str] = []
        yield statements
        statements += (statement for statement, _ in found)


@contextmanager
def executed(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are executed while the block runs, each with what it binds."""
    found: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        found.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)
