"""Debian's PgBouncer in front of a cluster of the tests, on a socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL

from ticketflow_orch.local import postgres_places
from ticketflow_orch.local.processes import listens

PROGRAM = Path("/usr/sbin/pgbouncer")
_PORT = 6432
_PATIENCE = 20.0
_CONFIGURATION = """
[databases]
* = host={server} port=5432 user=postgres

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {pool_size}
ignore_startup_parameters = {ignored}
logfile = {folder}/log
pidfile = {folder}/pid
"""


@contextmanager
def pgbouncer(
    database: URL, scratch: Path, mode: str, *, ignored: str = "extra_float_digits, options", pool_size: int = 20
) -> Iterator[URL]:
    """The URL of `database` through a pooler in that `pool_mode`, which is gone when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="b-", dir=scratch))
    path = folder / "pgbouncer.ini"
    values = {"server": database.query["host"], "port": _PORT, "folder": folder, "mode": mode}
    path.write_text(_CONFIGURATION.format(**values, ignored=ignored, pool_size=pool_size), "utf-8")
    account = postgres_places.account()
    if account is not None:
        for each in (folder, path):
            os.chown(each, account.pw_uid, account.pw_gid)
    process = subprocess.Popen(
        [PROGRAM, "--quiet", path],
        stdin=subprocess.DEVNULL,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )
    try:
        deadline = time.monotonic() + _PATIENCE
        while not listens(folder / f".s.PGSQL.{_PORT}"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "PgBouncer does not listen"
            time.sleep(0.02)
        yield database.update_query_dict({"host": str(folder)}).set(port=_PORT)
    finally:
        process.kill()
        process.wait(_PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
