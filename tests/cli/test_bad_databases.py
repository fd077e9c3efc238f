"""Databases in a state in which a command cannot work: each has its sentence, and is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL

from tests.cli.refusals import Bad, contents, refusal
from tests.conftest import TEMPLATE, fresh_database, run_sql
from tests.support.folders import story, write_folder
from tests.support.homes import fresh_home, variables_for
from tests.support.rows import add_organization
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.roles import grants
from ticketflow_orch.local.postgres import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and a database on it that may be spoilt."""

    server: EmbeddedServer
    url: URL

    def sql(self, *statements: str) -> None:
        """Change the database."""
        for statement in statements:
            run_sql(self.url, statement)

    def administer(self, statement: str) -> None:
        """Change something about the database from outside."""
        run_sql(self.server.url(), statement.format(self.url.database))

    def as_role(self, role: str) -> URL:
        """Sessions that carry a role."""
        return self.url.update_query_dict({"options": f"-c role={role}"})


@dataclass(frozen=True, slots=True)
class State:
    """`spoil` makes the state and returns the URL by which the command finds it; `template` is what it begins from."""

    spoil: Callable[[Place], URL | None]
    arguments: tuple[str, ...]
    said: str
    code: int = 2
    template: str = TEMPLATE


def with_sql(*statements: str) -> Callable[[Place], None]:
    """A state that statements make."""
    return lambda place: place.sql(*statements)


def read_only(place: Place) -> None:
    place.administer("ALTER DATABASE {} SET default_transaction_read_only = on")


def unwelcoming(place: Place) -> None:
    place.administer("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false")


def role(place: Place, name: str) -> URL:
    place.sql(f"DO $$ BEGIN CREATE ROLE {name} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    return place.as_role(name)


def role_of_runs(place: Place) -> URL:
    place.sql(grants())
    return place.as_role("ticketflow_run")


def wrong_password(place: Place) -> URL:
    place.sql(
        "DO $$ BEGIN CREATE ROLE pytest_secret LOGIN PASSWORD 'right'; EXCEPTION WHEN duplicate_object THEN "
        "NULL; END $$"
    )
    rules = place.server.data / "pg_hba.conf"
    line = "local all pytest_secret scram-sha-256\n"
    if line not in rules.read_text():
        rules.write_text(line + rules.read_text())
        run_sql(place.server.url(), "SELECT pg_reload_conf()")
    return place.url.set(username="pytest_secret", password="wr0ng")


# What a server without room says when a table is made.
FULL = (
    "CREATE FUNCTION full_disk() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
    "'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    "CREATE EVENT TRIGGER full_disk ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION full_disk()",
)
BEHIND = "The database's schema is behind this code ("
STATES: Mapping[str, State] = {
    "empty": State(lambda _: None, ("status",), f"{BEHIND}empty < ", template="template0"),
    "behind": State(
        with_sql("UPDATE alembic_version SET version_num = '0001'"),
        ("status",),
        f"{BEHIND}0001 < ",
    ),
    "ahead": State(
        with_sql("UPDATE alembic_version SET version_num = '9999'"),
        ("status",),
        "The database's schema is ahead of this code (revision 9999 is unknown here); upgrade ticketflow-orch",
    ),
    "ahead of a migration": State(
        with_sql("UPDATE alembic_version SET version_num = '9999'"),
        ("migrate",),
        "is ahead of this code",
    ),
    "no version": State(with_sql("DELETE FROM alembic_version"), ("status",), f"{BEHIND}empty < "),
    "read-only, importing": State(
        read_only,
        ("import", "{folder}"),
        "The database takes no writes (cannot execute CREATE TABLE in a read-only transaction)",
    ),
    "read-only, deciding": State(
        read_only,
        ("park", "hall", "--reason", "x"),
        "in a read-only transaction); name the primary server, or have it made",
    ),
    "read-only, migrating": State(
        read_only,
        ("migrate",),
        "The database takes no writes (cannot execute",
        template="template0",
    ),
    "a missing table": State(
        with_sql("DROP TABLE parked_organization CASCADE"),
        ("status",),
        'The database lacks a part of its schema (relation "parked_organization" does not exist); restore it',
    ),
    "a missing column": State(
        with_sql("ALTER TABLE settlement_pass DROP COLUMN cutoff_at CASCADE"),
        ("status",),
        "lacks a part of its schema (column",
    ),
    "the role of runs imports": State(
        role_of_runs,
        ("import", "{folder}"),
        "The database's role may not do this (permission denied for table data_import); run the command as a "
        "role that may",
    ),
    "no right to read": State(
        lambda place: role(place, "pytest_nobody"),
        ("status",),
        "The database's role may not do this (permission denied",
    ),
    "no right to create": State(
        lambda place: role(place, "pytest_nobody"),
        ("migrate",),
        "The database's role may not do this (permission denied for schema public)",
        template="template0",
    ),
    "no room": State(
        with_sql(*FULL),
        ("migrate",),
        "The database's disk is full (could not extend file: No space left on device); make room there, then "
        "run the command",
        code=1,
        template="template0",
    ),
    "a wrong password": State(
        wrong_password,
        ("status",),
        'password authentication failed for user "pytest_secret"); start that server or correct',
        code=1,
    ),
    "no such role": State(
        lambda place: place.url.set(username="pytest_unknown"),
        ("status",),
        'role "pytest_unknown" does not exist',
        code=1,
    ),
    "closed to sessions": State(unwelcoming, ("status",), "is not currently accepting connections", code=1),
    "no server": State(
        lambda place: URL.create("postgresql", "u", "s3cr3t", "127.0.0.1", 1, "x"),
        ("status",),
        "No connection to database 'x' as 'u' on 127.0.0.1:1 (Connection refused",
        code=1,
    ),
    "no server at an IPv6 address": State(
        lambda place: URL.create("postgresql", "u", "s3cr3t", "::1", 1, "x"),
        ("migrate",),
        "No connection to database 'x' as 'u'",
        code=1,
    ),
    "no database, and no right to make it": State(
        lambda place: role(place, "pytest_nobody").set(database="not_there"),
        ("migrate",),
        "'not_there' as 'postgres'",
        template="template0",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_database_in_no_state_for_it_is_refused_in_a_sentence_and_left_as_it_is(
    server: EmbeddedServer, scratch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    state = STATES[name]
    write_folder(tmp_path, story())
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(server, state.template))
        if state.template == TEMPLATE:
            engine = connect_engine(url, "pytest bad input", connections=1)
            add_organization(engine, external_ref="hall")
            engine.dispose()
        given = state.spoil(Place(server, url)) or url
        storage = server.url(f"{url.database}_dagster")
        stack.callback(run_sql, server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")
        stack.enter_context(fresh_home(scratch, **variables_for(given, storage)))
        arguments = [argument.format(folder=tmp_path) for argument in state.arguments]
        before = rows_in(server, url)
        said = refusal(capfd, Bad(state.said, arguments, code=state.code))
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert state.said in said
        assert "s3cr3t" not in said
        assert "wr0ng" not in said
        assert rows_in(server, url) == before


def rows_in(server: EmbeddedServer, url: URL) -> dict[str, int]:
    """The contents of a database, read as its owner."""
    engine = connect_engine(server.url(), "pytest bad input", connections=1)
    with engine.connect() as connection:
        query = text("SELECT datallowconn FROM pg_database WHERE datname = :name")
        is_open = connection.execute(query, {"name": url.database}).scalar_one()
    engine.dispose()
    run_sql(server.url(), f"ALTER DATABASE {url.database} WITH ALLOW_CONNECTIONS true")
    engine = connect_engine(url, "pytest bad input", connections=1)
    try:
        return contents(engine)
    finally:
        engine.dispose()
        run_sql(server.url(), f"ALTER DATABASE {url.database} WITH ALLOW_CONNECTIONS {is_open}")
