"""The servers that a URL names: one, or a primary and those that follow it, in any of the ways in which URLs say so.

psycopg 3, psycopg2 and the programs of Postgres agree on one way alone, `?host=a,b&port=5432,5433`, so all others are
written like that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from sqlalchemy.engine import URL

_PORT = 5432
# `user:password@a:5432,b:5432` as psql takes it, which SQLAlchemy does not.
_SEVERAL = re.compile(
    r"(?P<scheme>[\w+]+://(?:[^@/]*@)?)(?P<hosts>[^@/?#]*,[^@/?#]*)(?P<rest>/[^?]*)(?:\?(?P<query>.*))?"
)
_HOST = re.compile(r"\[(?P<ipv6>[0-9A-Fa-f:.%]+)\](?::(?P<port6>\d*))?|(?P<host>[^:\[\]]*)(?::(?P<port>\d*))?")
_WRITABLE = {"read-write", "primary"}
_ATTRIBUTES = "target_session_attrs"


@dataclass(frozen=True, slots=True)
class Host:
    """One server of a URL: a name, an address or the folder of a socket; empty stands for the default one."""

    name: str
    port: int

    @property
    def is_elsewhere(self) -> bool:
        """Whether what is said to it leaves this host."""
        if not self.name or self.name == "localhost" or self.name.startswith(("/", "@")):
            return False
        try:
            return not ip_address(self.name.partition("%")[0]).is_loopback
        except ValueError:
            return True

    def __str__(self) -> str:
        if self.name.startswith(("/", "@")):
            return self.name
        return f"{f'[{self.name}]' if ':' in self.name else self.name or 'the default host'}:{self.port}"


def split_hosts(given: str) -> str:
    """A URL with several hosts before its path, as psql takes it, with its hosts behind the path; any other as it is.

    Raises:
        ValueError: hosts stand in both places, or one is none.
    """
    found = _SEVERAL.fullmatch(given)
    if found is None:
        return given
    query = found["query"] or ""
    if re.search(r"(?:^|&)(?:host|port)=", query):
        raise ValueError("it names hosts twice")
    hosts = [_host(part) for part in found["hosts"].split(",")]
    return f"{found['scheme']}{found['rest']}?{'&'.join([_written(hosts), *([query] if query else [])])}"


def with_hosts(url: URL) -> URL:
    """`url` with all its hosts written in the way that drivers and programs share; one with a single host as it is.

    Of several the one that takes writes is meant, unless the URL says so in other words.

    Raises:
        ValueError: it asks for a server that follows, its hosts and ports are not as many, or one is none.
    """
    named = url.query.get("host", "")
    parts = named.split(",") if isinstance(named, str) else list(named)
    if len(parts) == 1 and ":" not in parts[0]:
        return url
    if "port" in url.query:
        ports = str(url.query["port"]).split(",")
        if len(ports) not in {1, len(parts)}:
            raise ValueError("it has as many ports as hosts, or one for all")
        hosts = [Host(name, int(port or _PORT)) for name, port in zip(parts, ports * len(parts), strict=False)]
    else:
        hosts = [_host(part) for part in parts]
    wanted = url.query.get(_ATTRIBUTES, "read-write")
    if len(hosts) > 1 and wanted not in _WRITABLE:
        raise ValueError(f"with several hosts, {_ATTRIBUTES} is read-write")
    query = {"host": ",".join(host.name for host in hosts), "port": ",".join(str(host.port) for host in hosts)}
    return url.update_query_dict({**query, **({_ATTRIBUTES: str(wanted)} if len(hosts) > 1 else {})})


def hosts_of(url: URL) -> tuple[Host, ...]:
    """Every server that `url`, as `parse_url` gives it, names, in the order in which they are tried."""
    names = str(url.query.get("host") or url.host or "").split(",")
    ports = str(url.query.get("port") or url.port or _PORT).split(",")
    return tuple(Host(name, int(port or _PORT)) for name, port in zip(names, ports * len(names), strict=False))


def _host(part: str) -> Host:
    # An address of IPv6 is bare where it has no port.
    if part.startswith(("/", "@")) or ("[" not in part and part.count(":") > 1):
        return Host(part, _PORT)
    found = _HOST.fullmatch(part)
    if found is None:
        raise ValueError("a host is written like db1.example:5432")
    return Host(found["ipv6"] or found["host"] or "", int(found["port6"] or found["port"] or _PORT))


def _written(hosts: list[Host]) -> str:
    return f"host={','.join(host.name for host in hosts)}&port={','.join(str(host.port) for host in hosts)}"
