"""A cluster of a test's own that speaks TLS on an address of this host, with a certificate for names of its choice."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from sqlalchemy.engine import URL

from tests.conftest import DEBIAN_15, run_sql
from ticketflow_orch.local import postgres_places
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer

# pytest-randomly seeds the dice of all workers alike.
_dice = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class EncryptedServer:
    """It listens at `address`; `authority` is the file of the certificate that vouches for it."""

    server: EmbeddedServer
    address: str
    authority: Path

    def url(self, database: str, host: str, **query: str) -> URL:
        """The URL of a database for those who know the server as `host`."""
        return URL.create(
            "postgresql", "postgres", host=host, port=5432, database=database,
            query={"hostaddr": self.address, **query},
        )  # fmt: skip


@contextmanager
def encrypted_server(folder: Path, names: Sequence[str]) -> Iterator[EncryptedServer]:
    """A running server whose certificate has these names; it is gone when the block ends."""
    # All of 127.0.0.0/8 is this host; the port is taken elsewhere.
    address = f"127.{_dice.randrange(1, 255)}.{_dice.randrange(255)}.{_dice.randrange(1, 255)}"
    server = EmbeddedServer(folder, DEBIAN_15, {**DEFAULT_PARAMETERS, "listen_addresses": address, "fsync": "off"})
    server.start()
    try:
        authority = trustme.CA()
        certificate = authority.issue_cert(*names)
        key, chain = server.data / "server.key", server.data / "server.crt"
        key.write_bytes(certificate.private_key_pem.bytes())
        key.chmod(0o600)
        chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        account = postgres_places.account()
        if account is not None:
            for path in (key, chain):
                os.chown(path, account.pw_uid, account.pw_gid)
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 127.0.0.0/8 trust\n")
        run_sql(server.url(), "ALTER SYSTEM SET ssl = on")
        run_sql(server.url(), "SELECT pg_reload_conf()")
        trusted = folder.with_name(f"{folder.name}.pem")
        authority.cert_pem.write_to_path(str(trusted))
        yield EncryptedServer(server, address, trusted)
        trusted.unlink()
    finally:
        server.remove()
