"""What `ticketflow doctor` and `ticketflow health` find of the servers behind both databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ticketflow_orch.cli.findings import Finding, State
from ticketflow_orch.db.hosts import hosts_of
from ticketflow_orch.local.databases import DAGSTERS, OURS, Databases
from ticketflow_orch.local.servers import Server, servers

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_VERIFIED = "verify-full"


def examine_servers(databases: Databases) -> Iterator[Finding]:
    """Whether one server of several takes writes, and what leaves this host is encrypted; nothing for our own."""
    if databases.embedded is not None:
        return
    for url, variable, subject in _urls(databases):
        found = servers(url)
        yield from standing(found, subject)
        encryption = _encryption(found, url, variable, subject)
        if encryption is not None:
            yield encryption


def examine_standing(databases: Databases) -> Iterator[Finding]:
    """Which of several servers takes writes, and which follow; one alone is not asked."""
    for url, _, subject in _urls(databases):
        if len(hosts_of(url)) > 1:
            yield from standing(servers(url), subject)


def _urls(databases: Databases) -> tuple[tuple[URL, str, str], ...]:
    """Both URLs, each with the variable that has it and the name of what is found."""
    return (databases.ticketflow, OURS, "servers"), (databases.dagster, DAGSTERS, "dagster servers")


def standing(found: Sequence[Server], subject: str) -> Iterator[Finding]:
    """Which of several servers takes writes, and which follow; nothing of one alone, which others ask."""
    if len(found) == 1:
        return
    said = ", ".join(_said(server) for server in found)
    writing = [str(server.host) for server in found if server.fault is None and not server.follows]
    if len(writing) > 1:
        fix = "stop the one that was not promoted at once; what was written there since is in no other"
        yield Finding(subject, State.WRONG, f"{' and '.join(writing)} both take writes", fix)
    elif not writing:
        yield Finding(subject, State.WRONG, f"none takes writes: {said}", "promote the one that was behind least")
    elif any(server.fault for server in found):
        yield Finding(subject, State.STOPPED, said, "start it again as a standby, or take it out of the URL")
    else:
        yield Finding(subject, State.OK, said)


def _said(server: Server) -> str:
    if server.fault is not None:
        return f"{server.host} does not answer ({server.fault})"
    return f"{server.host} follows, {server.behind:.0f} s behind" if server.follows else f"{server.host} takes writes"


def _encryption(found: Sequence[Server], url: URL, variable: str, subject: str) -> Finding | None:
    elsewhere = [server for server in found if server.fault is None and server.host.is_elsewhere]
    if not elsewhere:
        return None
    plain = [str(server.host) for server in elsewhere if not server.is_encrypted]
    fix = f"give {variable} sslmode=verify-full and sslrootcert"
    if plain:
        detail = f"what is said to {' and '.join(plain)}, on another host, is not encrypted"
        return Finding(subject, State.STOPPED, detail, fix)
    mode = str(url.query.get("sslmode", "prefer"))
    if mode != _VERIFIED:
        return Finding(subject, State.STOPPED, f"encrypted, with sslmode={mode}: anybody may be the server", fix)
    return Finding(subject, State.OK, "encrypted, and they are who they are taken for")
