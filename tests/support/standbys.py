"""Standbys: clusters that follow another one, until they are cut off and promoted."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.support.payable import rows
from ticketflow_orch.local import postgres_places
from ticketflow_orch.local.postgres import EmbeddedServer


def programs(server: EmbeddedServer) -> Path:
    """The folder of the server's own programs."""
    found = server.binaries or postgres_places.programs()
    if not (found / "pg_dump").exists():
        pytest.skip(f"no pg_dump in {found}")
    return found


@contextmanager
def standby(server: EmbeddedServer, folder: Path) -> Iterator[EmbeddedServer]:
    """A running standby of `server` that has its own folder."""
    standby = EmbeddedServer(folder, server.binaries, server.parameters)
    folder.mkdir()
    command: list[str | Path] = [
        programs(server) / "pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "-c", "fast", "--no-sync",
        "-U", "postgres", "-h", server.socket_directory, "-p", "5432",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    account = postgres_places.account()
    if account is not None:
        for path in (standby.data, *standby.data.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    (standby.data / "postmaster.pid").unlink(missing_ok=True)
    try:
        standby.start()
        yield standby
    finally:
        standby.remove()


def until(engine: Engine, question: str) -> None:
    """Wait until the database says yes."""
    for _ in range(600):
        if rows(engine, question) == [(True,)]:
            return
        time.sleep(0.05)
    pytest.fail(f"it never came: {question}")


def cut_off(following: Engine) -> None:
    """Let a standby, which `following` is on, hear nothing more of what is written; returns when that is so."""
    with following.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ALTER SYSTEM SET primary_conninfo = ''"))
        connection.execute(text("SELECT pg_reload_conf()"))
    until(following, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
