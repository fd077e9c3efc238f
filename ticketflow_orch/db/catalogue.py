"""What the migrations build, and what a database has of it: tables, keys, checks, indexes, triggers, functions, grants.

`catalogue.json` is written from a migrated database by `python -m tests.support.schema`; a test holds the two
together. Each definition stands there as a digest, which is the same on every supported version of Postgres.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql

OWNER_ROLE, RUN_ROLE = "ticketflow_owner", "ticketflow_run"
RELAY_ROLE, ANALYST_ROLE = "ticketflow_relay", "ticketflow_analyst"
ROLES = (OWNER_ROLE, RUN_ROLE, RELAY_ROLE, ANALYST_ROLE)
# Who needs what a role holds, and does not need what it holds beyond.
_NEEDS = {
    RUN_ROLE: ("runs need", "runs do not need"),
    RELAY_ROLE: ("the relay needs", "the relay does not need"),
    ANALYST_ROLE: ("analysts need", "analysts do not need"),
}
FILE = "catalogue.json"
_LEDGERS_KEY = "constraint ledger_entry.ledger_entry_pkey"
_WRITTEN_BY_THE_APPLICATION = ("currency", "event", "money_movement", "organization", "reservation")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """`objects`: the digest of each definition, by kind and name. `grants`: what each role holds, by its name."""

    objects: Mapping[str, str]
    grants: Mapping[str, tuple[str, ...]]

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return self._named("table")

    @property
    def functions(self) -> list[str]:
        """The names of the functions, with the types of their arguments."""
        return self._named("function")

    def _named(self, kind: str) -> list[str]:
        return [name.partition(" ")[2] for name in self.objects if name.startswith(f"{kind} ")]


@cache
def expected() -> Catalogue:
    """What the migrations of this version build."""
    read = json.loads(resources.files("ticketflow_orch.db").joinpath(FILE).read_text("utf-8"))
    return Catalogue(read["objects"], {role: tuple(held) for role, held in read["grants"].items()})


def found(connection: Connection) -> Catalogue:
    """What is there, in the schema public."""
    grants = {role: tuple(sorted(connection.exec_driver_sql(_GRANTS, {"role": role}).scalars())) for role in _NEEDS}
    return Catalogue(dict(sorted(_objects(connection).items())), grants)


def missing_objects(connection: Connection) -> tuple[str, ...]:
    """What the migrations built and is not there, is switched off, or was replaced, in words."""
    there = _objects(connection)
    wanted = expected().objects
    tables = {name.partition(" ")[2] for name in wanted if name.startswith("table ") and name not in there}
    faults = [
        _fault(name, name in there)
        for name, digest in wanted.items()
        if there.get(name) != digest and (name.startswith("table ") or _table(name) not in tables)
    ]
    # Named first: a repeat is harmless by it alone.
    return tuple(sorted(faults, key=lambda fault: (not fault.startswith("the ledger's primary key"), fault)))


def foreign_triggers(connection: Connection) -> tuple[str, ...]:
    """Triggers of others that may change or drop rows of the tables that only this project writes, in words."""
    rows = connection.exec_driver_sql(_BEFORE_ROWS, {"others": list(_WRITTEN_BY_THE_APPLICATION)})
    return tuple(
        f"trigger {row.name} may change or drop what is written to {row.relation}, and no migration made it"
        for row in rows
        if f"trigger {row.relation}.{row.name}" not in expected().objects
    )


def grant_faults(connection: Connection) -> tuple[str, ...]:
    """What the roles of runs, relay and analysts lack, and may do beyond it, by whomever that was granted, in words.

    Nothing of a role that was given nothing at all: others are carried there.
    """
    return tuple(fault for role in _NEEDS for fault in _faults(connection, role))


def _faults(connection: Connection, role: str) -> Iterator[str]:
    if not connection.exec_driver_sql(_IS_SET_UP, {"role": role}).scalar_one():
        return
    grants = [_grant(grant) for grant in expected().grants[role]]
    asked = {
        "role": role,
        "privileges": [privilege for privilege, _, _ in grants],
        "columns": [column for _, column, _ in grants],
        "names": [name for _, _, name in grants],
    }
    for who, what in _by_object(connection.exec_driver_sql(_LACKING, asked)):
        yield f"role {who} may not {what}, which {_NEEDS[role][0]}"
    yield from _excess(connection, role, asked)


def _excess(connection: Connection, role: str, asked: Mapping[str, Any]) -> Iterator[str]:
    asked = {**asked, "tables": [*expected().tables, "alembic_version"], "functions": expected().functions}
    may = connection.exec_driver_sql(_MAY, asked).one()
    if may.own:
        yield f"role {role} may do all that {may.own} may, and nothing guards the database from that"
        return
    for is_so, what in (
        (may.temporary, "create temporary tables in this database"),
        (may.creates, "create objects in the schema public"),
        (may.replicates, "switch triggers off by session_replication_role"),
    ):
        if is_so:
            yield f"role {role} may {what}"
    for who, what in _by_object(connection.exec_driver_sql(_BEYOND, asked)):
        yield f"role {who} may {what}, which {_NEEDS[role][1]}"


def _objects(connection: Connection) -> Mapping[str, str]:
    return {row.name: row.digest for row in connection.exec_driver_sql(_OBJECTS)}


def _fault(name: str, is_there: bool) -> str:
    kind, _, rest = name.partition(" ")
    short = rest.rpartition(".")[2] if kind in {"constraint", "trigger", "index"} else rest
    if name == _LEDGERS_KEY and not is_there:
        return "the ledger's primary key is missing or not valid"
    match kind, is_there:
        case "trigger", False:
            return f"trigger {short} is missing or switched off"
        case (("constraint" | "index"), False):
            return f"{kind} {short} is missing or not valid"
        case _, False:
            return f"{kind} {short} is missing"
        case _:
            return f"{kind} {short} is not what the migrations made"


def _table(name: str) -> str | None:
    kind, _, rest = name.partition(" ")
    return None if kind in {"function", "sequence"} else rest.partition(".")[0]


def _grant(grant: str) -> tuple[str, str | None, str]:
    """A grant's privilege, its column if it is on one, and what it is on."""
    what, _, name = grant.partition(" ON ")
    privilege, _, column = what.partition(" ")
    return privilege, column.strip("()") or None, name


def _by_object(rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
    together: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        columns = together.setdefault((row.who, row.privilege, row.name), [])
        if row.of_column is not None:
            columns.append(row.of_column)
    for (who, privilege, name), columns in together.items():
        yield who, " ".join([privilege, *([f"({', '.join(columns)})"] if columns else []), name])


_RELATION = sql(__file__, "relation")
_OBJECTS = sql(__file__, "objects", relation=_RELATION)
_GRANTS = sql(__file__, "grants", relation=_RELATION)
_IS_SET_UP = sql(__file__, "is_set_up", relation=_RELATION)
_LACKING = sql(__file__, "lacking")
_MAY = sql(__file__, "may")
_BEYOND = sql(__file__, "beyond")
_BEFORE_ROWS = sql(__file__, "before_rows")
