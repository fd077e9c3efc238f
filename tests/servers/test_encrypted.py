"""sslmode=verify-full for both databases: a server under another name is refused, and what is not encrypted is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from dagster import DagsterInstance
from sqlalchemy import text
from sqlalchemy.engine import URL

from tests.conftest import SERVERS
from tests.servers.encrypted import EncryptedServer, encrypted_server
from tests.support.commands import output
from tests.support.homes import MIGRATING, fresh_home, variables_for
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError, Unavailable
from ticketflow_orch.local.databases import DAGSTERS, OURS, fault, serving
from ticketflow_orch.settings import read_settings

pytestmark = pytest.mark.skipif(
    "postgres15" not in SERVERS, reason="there is no Postgres 15 here, and the wheel's speaks no TLS: postgresql-15"
)
NAME = "db1.ticketflow.example"


@pytest.fixture(scope="module")
def there(scratch: Path) -> Iterator[EncryptedServer]:
    with encrypted_server(scratch / "encrypted", [NAME]) as there:
        yield there


def both(there: EncryptedServer, host: str, **query: str) -> tuple[URL, URL]:
    return there.url("ticketflow", host, **query), there.url("ticketflow_dagster", host, **query)


def verified(there: EncryptedServer) -> dict[str, str]:
    return {"sslmode": "verify-full", "sslrootcert": str(there.authority)}


def doctor() -> str:
    return " ".join(output("doctor").split())


def test_both_databases_are_reached_encrypted_and_verified(there: EncryptedServer, scratch: Path) -> None:
    ours, dagsters = both(there, NAME, **verified(there))
    with (
        fresh_home(scratch, **variables_for(ours, dagsters)),
        running(read_settings(), asked=MIGRATING) as instance,
        DagsterInstance.get() as dagster,
    ):
        encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        engine = connect_engine(instance.databases.ticketflow, "encrypted")
        with engine.connect() as connection:
            assert connection.execute(text(encrypted)).scalar_one()
        engine.dispose()
        with dagster.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
            assert connection.execute(text(encrypted)).scalar_one()
        assert doctor().count("encrypted, and they are who they are taken for") == 2


@pytest.mark.parametrize("wrong", [OURS, DAGSTERS])
def test_a_server_under_another_name_is_refused_in_a_sentence(
    there: EncryptedServer, scratch: Path, wrong: str
) -> None:
    right, other = verified(there), "db2.ticketflow.example"
    names = {OURS: NAME, DAGSTERS: NAME, wrong: other}
    variables = variables_for(
        there.url("ticketflow", names[OURS], **right), there.url("ticketflow_dagster", names[DAGSTERS], **right)
    )
    with (
        fresh_home(scratch, **variables),
        pytest.raises(TicketflowError) as refusal,
        serving(read_settings()),
    ):
        pass
    assert f"on {other}:5432 (server certificate for " in str(refusal.value)
    assert f'does not match host name "{other}"' in str(refusal.value)
    assert str(refusal.value).endswith(f"or the host, sslmode and sslrootcert of {wrong}.")


def test_a_server_that_nobody_vouches_for_is_refused(there: EncryptedServer, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    found = fault(there.url("postgres", NAME, sslmode="verify-full", sslrootcert=str(stranger)), OURS)
    assert isinstance(found, Unavailable)
    assert "certificate verify failed" in str(found)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("disable", f"what is said to {NAME}:5432, on another host, is not encrypted"),
        ("require", "encrypted, with sslmode=require: anybody may be the server"),
    ],
)
def test_the_doctor_says_what_is_not_encrypted_or_not_verified(
    there: EncryptedServer, scratch: Path, mode: str, said: str
) -> None:
    with (
        fresh_home(scratch, **variables_for(*both(there, NAME, sslmode=mode))),
        running(read_settings(), asked=MIGRATING),
    ):
        found = doctor()
    assert found.count(said) == 2
    assert f"give {OURS} sslmode=verify-full and sslrootcert" in found
    assert f"give {DAGSTERS} sslmode=verify-full and sslrootcert" in found
