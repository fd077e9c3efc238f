"""A URL may name several servers, written as psql, libpq or SQLAlchemy want them; both databases are found by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from dagster import DagsterInstance
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url

from tests.support.commands import output
from tests.support.homes import MIGRATING, dagster_storage, fresh_home
from ticketflow_orch.cli.database_servers import standing
from ticketflow_orch.cli.findings import State
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.db.engine import connect_engine, parse_url
from ticketflow_orch.db.hosts import hosts_of
from ticketflow_orch.errors import InvalidInput, TicketflowError, Unavailable
from ticketflow_orch.local.databases import fault, resolve, storage_url
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.local.servers import servers
from ticketflow_orch.settings import read_settings

VARIABLE = "TICKETFLOW_DATABASE_URL"
TWO = ("a:5432", "b:5433")


@pytest.fixture
def storage(server: EmbeddedServer, url: URL) -> Iterator[URL]:
    with dagster_storage(server, url) as storage:
        yield storage


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ("postgresql://u:p@a:5432,b:5433/x", TWO),
        ("postgresql://u:p@a,b:5433/x?sslmode=require", TWO),
        ("postgresql://u:p@/x?host=a:5432&host=b:5433&target_session_attrs=read-write", TWO),
        ("postgresql://u:p@/x?host=a,b&port=5432,5433", TWO),
        ("postgresql://u:p@/x?host=a,b&port=5433", ("a:5433", "b:5433")),
        ("postgresql://u:p@[::1]:5433,[::2]/x", ("[::1]:5433", "[::2]:5432")),
        ("postgresql://u:p@/x?host=/run/a,/run/b", ("/run/a", "/run/b")),
        ("postgresql://u:p@a/x", ("a:5432",)),
        ("postgresql://u:p@/x?host=a:5433", ("a:5433",)),
        ("postgresql://u:p@/x?host=::1", ("[::1]:5432",)),
        ("postgresql://u:p@/x", ("the default host:5432",)),
        ("postgresql://u:p%2Cq@a/x", ("a:5432",)),
    ],
)
def test_hosts_are_found_wherever_they_are_written(given: str, hosts: tuple[str, ...]) -> None:
    url = parse_url(given)
    assert tuple(map(str, hosts_of(url))) == hosts
    assert (url.query.get("target_session_attrs") == "read-write") is (len(hosts) > 1)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_what_is_read_is_what_programs_of_postgres_read_too(driver: str) -> None:
    url = parse_url("postgresql://u:p@a:5432,b:5433/x")
    written = url.set(drivername="postgresql").render_as_string(hide_password=False)
    expected = {
        "user": "u",
        "password": "p",
        "dbname": "x",
        "host": "a,b",
        "port": "5432,5433",
        "target_session_attrs": "read-write",
    }
    assert psycopg.conninfo.conninfo_to_dict(written) == expected
    assert parse_url(written) == url
    named = url.set(drivername=f"postgresql+{driver}")
    given = named.get_dialect()().create_connect_args(named)[1]
    assert {name: given[name] for name in ("host", "port")} == {"host": "a,b", "port": "5432,5433"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("postgresql://u:s3cr3t@a,b/x?target_session_attrs=any", "with several hosts, target_session_attrs is"),
        ("postgresql://u:s3cr3t@/x?host=a,b&port=1,2,3", "as many ports as hosts"),
        ("postgresql://u:s3cr3t@/x?host=a:54x&host=b", "a host is written like db1.example:5432"),
        ("postgresql://u:s3cr3t@a,b/x?host=c", "is not a database URL"),
        ("postgresql://u:s3cr3t@a:1x,b/x", "is not a database URL"),
    ],
)
def test_hosts_that_are_written_wrongly_are_refused_in_one_sentence(given: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refusal:
        parse_url(given)
    assert VARIABLE in str(refusal.value)
    assert "s3cr3t" not in str(refusal.value)


def test_one_database_for_both_is_refused_where_one_url_names_another_host_too(scratch: Path) -> None:
    variables = {
        VARIABLE: "postgresql://u:p@a:5432,b:5432/x",
        "TICKETFLOW_DAGSTER_DATABASE_URL": "postgresql://u:p@b/x?sslmode=require",
    }
    with fresh_home(scratch, **variables), pytest.raises(TicketflowError, match="'x' as 'u' on a:5432 or b:5432;"):
        resolve(read_settings())


def test_each_host_that_cannot_be_reached_is_named_with_its_reason() -> None:
    nowhere = parse_url("postgresql://u:s3cr3t@127.0.0.1:1,127.0.0.1:2/x")
    found = fault(nowhere, VARIABLE)
    assert isinstance(found, Unavailable)
    assert str(found).startswith("No connection to database 'x' as 'u' on 127.0.0.1:1 or 127.0.0.1:2 (Connection")
    assert [server.fault for server in servers(nowhere)] == ["Connection refused"] * 2


def behind_a_dead_one(url: URL) -> str:
    """The URL of a database whose first host is gone."""
    host = str(url.query["host"])
    return f"postgresql://postgres@/{url.database}?host=127.0.0.1:1&host={host}&target_session_attrs=read-write"


def test_a_first_host_that_is_dead_is_passed_over_by_ours_and_by_dagster(scratch: Path, url: URL, storage: URL) -> None:
    ours, dagsters = behind_a_dead_one(url), behind_a_dead_one(storage)
    with (
        fresh_home(scratch, TICKETFLOW_DATABASE_URL=ours, TICKETFLOW_DAGSTER_DATABASE_URL=dagsters),
        running(read_settings(), asked=MIGRATING) as instance,
        DagsterInstance.get() as dagster,
    ):
        assert dagster.get_runs() == []
        engine = connect_engine(instance.databases.ticketflow, "behind")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT current_database()")).scalar_one() == url.database
        engine.dispose()
        assert output("status")
        said = " ".join(output("doctor").split())
        assert "127.0.0.1:1 does not answer (Connection refused)" in said
        assert "takes writes" in said


def test_plain_dagster_commands_take_what_an_operator_wrote() -> None:
    found = storage_url("postgresql://u:p@a:5432,b:5433/y")
    assert found.drivername == "postgresql+psycopg2"
    assert found.query["host"] == "a,b"
    assert found.query["connect_timeout"] == "10"
    assert make_url(found.render_as_string(hide_password=False)) == found


def test_two_servers_that_both_take_writes_are_wrong(url: URL) -> None:
    both = url.update_query_dict({"host": f"{url.query['host']},localhost", "port": "5432,1"})
    first, second = servers(both)
    assert (first.fault, first.follows, first.is_encrypted) == (None, False, False)
    assert second.fault is not None
    [finding] = standing((first, first), "servers")
    assert finding.state == State.WRONG
    assert "both take writes" in finding.detail
