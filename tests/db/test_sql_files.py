"""The `.sql` files: a query is named once, says what it is for, is used, and is one that Postgres takes."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import ExecStatus
from sqlalchemy import Connection, Engine

from tests.support.statements_held import complete, rendered, texts
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import Statement
from ticketflow_orch.importing.linking import link
from ticketflow_orch.importing.staging import Staging
from ticketflow_orch.months import Month

ROOT = Path(__file__).parents[2]
FILES = [file for file in sorted(ROOT.glob("ticketflow_orch/**/*.sql")) if file.with_suffix(".py").exists()]
_COMMENT = re.compile(r"--[^\n]*")
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


def place(file: Path) -> str:
    return str(file.relative_to(ROOT))


def queries(file: Path) -> list[tuple[str, str]]:
    """The name and the text of each query of a file."""
    _, *found = re.split(r"^-- name: (\w+)\n", file.read_text("utf-8"), flags=re.MULTILINE)
    return list(zip(found[::2], found[1::2], strict=True))


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 20
    assert len(rendered()) > 100


@pytest.mark.parametrize("file", FILES, ids=place)
def test_every_query_has_a_name_of_its_own_and_says_what_it_is_for(file: Path) -> None:
    names = [name for name, _ in queries(file)]
    assert sorted(set(names)) == sorted(names)
    assert [name for name, text in queries(file) if not text.startswith("-- ")] == []


@pytest.mark.parametrize("file", FILES, ids=place)
def test_every_query_is_used_by_the_module_beside_it(file: Path) -> None:
    module = ast.parse(file.with_suffix(".py").read_text("utf-8"))
    said = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
    assert [name for name, _ in queries(file) if name not in said] == []


def test_no_statement_keeps_a_part_that_nobody_filled_in_or_a_bind_of_another_style() -> None:
    plain = {where: _COMMENT.sub("", statement) for where, statement in rendered().items()}
    assert [where for where, text in plain.items() if re.search(r"\{\w*\}", _LITERAL.sub("''", text))] == []
    assert [where for where, text in plain.items() if re.search(r"(?<![:\w]):[a-z_]", _LITERAL.sub("''", text))] == []


@pytest.mark.every_server
def test_postgres_takes_every_statement_and_infers_the_type_of_all_that_is_bound(engine: Engine) -> None:
    whole = complete()
    assert len(whole) > 100
    refused = []
    with transaction(engine) as connection:
        # What an import works on are tables of its own.
        link(Staging(connection), Month(2026, 1))
        for where, statement in whole.items():
            objection = _objection(connection, statement)
            if objection is not None and not _is_part(where, statement):
                refused.append(f"{where}: {objection}")
    assert refused == []


def _is_part(where: str, statement: Statement) -> bool:
    """Whether other statements hold this one, which may ask about aliases of theirs, and is tried there."""
    if any(statement in text for text in texts() if text != statement):
        return True
    # Or the module makes such a statement only when it is asked for.
    module, _, name = where.partition(" ")[0].rpartition(".")
    tree = ast.parse(Path(str(importlib.import_module(module).__file__)).read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "sql"]
    return name in {ast.unparse(part.value) for call in calls for part in call.keywords}


def _objection(connection: Connection, statement: Statement) -> str | None:
    """What Postgres says against a statement as psycopg sends it; None if nothing."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    names = list(dict.fromkeys(_PLACEHOLDER.findall(statement)))
    text = _PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", statement)
    savepoint = connection.begin_nested()
    result = driver.pgconn.prepare(b"", (text.replace("%%", "%") if names else text).encode())
    savepoint.rollback()
    return None if result.status == ExecStatus.COMMAND_OK else result.error_message.decode().strip()
