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

from sqlalchemy import Connection, text

RUN_ROLE = "ticketflow_run"
FILE = "catalogue.json"
_LEDGERS_KEY = "constraint ledger_entry.ledger_entry_pkey"
_KINDS = ("table", "function")
_WRITTEN_BY_THE_APPLICATION = ("currency", "event", "money_movement", "organization", "reservation")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """`objects`: the digest of each definition, by kind and name. `grants`: what the role of runs holds."""

    objects: Mapping[str, str]
    grants: tuple[str, ...]


@cache
def expected() -> Catalogue:
    """What the migrations of this version build."""
    read = json.loads(resources.files("ticketflow_orch.db").joinpath(FILE).read_text("utf-8"))
    return Catalogue(read["objects"], tuple(read["grants"]))


def found(connection: Connection) -> Catalogue:
    """What is there, in the schema public."""
    grants = connection.execute(_GRANTS, {"role": RUN_ROLE}).scalars()
    return Catalogue(dict(sorted(_objects(connection).items())), tuple(sorted(grants)))


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
    rows = connection.execute(_BEFORE_ROWS, {"others": list(_WRITTEN_BY_THE_APPLICATION)})
    return tuple(
        f"trigger {row.name} may change or drop what is written to {row.relation}, and no migration made it"
        for row in rows
        if f"trigger {row.relation}.{row.name}" not in expected().objects
    )


def grant_faults(connection: Connection) -> tuple[str, ...]:
    """What the role of runs lacks, and what it may do beyond it, by whomever that was granted, in words.

    Nothing where the role was given nothing at all: runs carry another one there.
    """
    if not connection.execute(_IS_SET_UP, {"role": RUN_ROLE}).scalar_one():
        return ()
    grants = [_grant(grant) for grant in expected().grants]
    asked = {
        "role": RUN_ROLE,
        "privileges": [privilege for privilege, _, _ in grants],
        "columns": [column for _, column, _ in grants],
        "names": [name for _, _, name in grants],
    }
    lacking = _by_object(connection.execute(_LACKING, asked))
    return (*(f"role {who} may not {what}, which runs need" for who, what in lacking), *_excess(connection, asked))


def _excess(connection: Connection, asked: Mapping[str, Any]) -> Iterator[str]:
    ours = {kind: [name.partition(" ")[2] for name in expected().objects if name.startswith(kind)] for kind in _KINDS}
    asked = {**asked, "tables": [*ours["table"], "alembic_version"], "functions": ours["function"]}
    may = connection.execute(_MAY, asked).one()
    if may.own:
        yield f"role {RUN_ROLE} may do all that {may.own} may, as whom nothing guards the database"
        return
    for is_so, what in (
        (may.temporary, "create temporary tables in this database"),
        (may.creates, "create objects in the schema public"),
        (may.replicates, "switch triggers off by session_replication_role"),
    ):
        if is_so:
            yield f"role {RUN_ROLE} may {what}"
    for who, what in _by_object(connection.execute(_BEYOND, asked)):
        yield f"role {who} may {what}, which runs do not need"


def as_text(catalogue: Catalogue) -> str:
    """The content of `catalogue.json`."""
    return json.dumps({"objects": catalogue.objects, "grants": catalogue.grants}, indent=1) + "\n"


def _objects(connection: Connection) -> Mapping[str, str]:
    return {row.name: row.digest for row in connection.execute(_OBJECTS)}


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


_RELATION = """
    SELECT pg_class.oid, relname FROM pg_class
    WHERE relnamespace = CAST('public' AS regnamespace) AND relkind = 'r' AND relname <> 'alembic_version'
"""

# By name, whatever order columns were added in. Whether an id may be given is asked by `order_faults`; what is switched
# off or not valid is not there, as a foreign key whose own triggers are switched off. Row security and rules would hide
# or turn what statements mean, a child table would add rows that no guard has seen, and events go in the order of their
# ids. What runs with its owner's rights needs those of the outbox's owner; and who may execute it could lend them to a
# table of their own.
_OBJECTS = text(f"""
    WITH relation AS MATERIALIZED ({_RELATION})
    SELECT name, left(encode(sha256(convert_to(definition, 'UTF8')), 'hex'), 12) AS digest FROM (
        SELECT 'table ' || relname AS name, concat_ws(',', relpersistence, relrowsecurity, relhasrules,
                EXISTS (SELECT FROM pg_inherits WHERE inhparent = pg_class.oid), (
                SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull,
                    pg_get_expr(adbin, adrelid)), ',' ORDER BY attname COLLATE "C")
                FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped)) AS definition
        FROM relation JOIN pg_class USING (oid, relname)
        UNION ALL
        SELECT 'constraint ' || relname || '.' || conname, pg_get_constraintdef(pg_constraint.oid)
        FROM pg_constraint JOIN relation ON relation.oid = conrelid
        LEFT JOIN pg_index ON indexrelid = conindid AND contype IN ('p', 'u', 'x')
        WHERE contype IN ('c', 'f', 'p', 'u', 'x') AND convalidated AND NOT condeferrable
            AND coalesce(indisvalid AND indisready, true) AND NOT EXISTS (
                SELECT FROM pg_trigger WHERE tgconstraint = pg_constraint.oid AND tgenabled NOT IN ('O', 'A'))
        UNION ALL
        SELECT 'constraint ' || typname || '.' || conname, pg_get_constraintdef(pg_constraint.oid)
        FROM pg_constraint JOIN pg_type ON pg_type.oid = contypid
        WHERE typnamespace = CAST('public' AS regnamespace) AND contype = 'c' AND convalidated
        UNION ALL
        SELECT 'index ' || relation.relname || '.' || named.relname, pg_get_indexdef(indexrelid)
        FROM pg_index JOIN relation ON relation.oid = indrelid JOIN pg_class AS named ON named.oid = indexrelid
        WHERE indisvalid AND indisready AND NOT EXISTS (
            SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
        UNION ALL
        SELECT 'trigger ' || relname || '.' || tgname, pg_get_triggerdef(pg_trigger.oid)
        FROM pg_trigger JOIN relation ON relation.oid = tgrelid WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')
        UNION ALL
        SELECT 'sequence ' || relname, concat_ws(',', CAST(seqtypid AS regtype), seqincrement, seqcache, seqcycle)
        FROM pg_class JOIN pg_sequence ON seqrelid = oid
        WHERE relnamespace = CAST('public' AS regnamespace) AND relname = 'outbox_event_id_seq'
        UNION ALL
        SELECT 'function ' || CAST(CAST(oid AS regprocedure) AS text), concat_ws(',', prosrc,
            pg_get_function_sqlbody(oid), provolatile, prosecdef, proisstrict, array_to_string(proconfig, ';'),
            prosecdef AND has_function_privilege('public', oid, 'EXECUTE'),
            prosecdef AND NOT pg_has_role(
                proowner, (SELECT relowner FROM pg_class WHERE oid = to_regclass('public.outbox_event')), 'USAGE'))
        FROM pg_proc WHERE pronamespace = CAST('public' AS regnamespace) AND prokind = 'f'
    ) AS defined
""")

_GRANTS = text(f"""
    WITH relation AS MATERIALIZED ({_RELATION})
    SELECT privilege_type || ' ON ' || relname FROM relation JOIN pg_class USING (oid, relname)
        CROSS JOIN LATERAL aclexplode(relacl) WHERE grantee = to_regrole(CAST(:role AS text))
    UNION ALL
    SELECT privilege_type || ' (' || attname || ') ON ' || relname
    FROM relation JOIN pg_attribute ON attrelid = relation.oid CROSS JOIN LATERAL aclexplode(attacl)
    WHERE grantee = to_regrole(CAST(:role AS text))
    UNION ALL
    SELECT privilege_type || ' ON ' || relname FROM pg_class CROSS JOIN LATERAL aclexplode(relacl)
    WHERE relkind = 'S' AND relnamespace = CAST('public' AS regnamespace)
        AND grantee = to_regrole(CAST(:role AS text))
    UNION ALL
    SELECT privilege_type || ' ON ' || CAST(CAST(pg_proc.oid AS regprocedure) AS text)
    FROM pg_proc CROSS JOIN LATERAL aclexplode(proacl)
    WHERE pronamespace = CAST('public' AS regnamespace) AND grantee = to_regrole(CAST(:role AS text))
""")

_IS_SET_UP = text(f"""
    WITH relation AS MATERIALIZED ({_RELATION})
    SELECT EXISTS (
        SELECT FROM relation JOIN pg_class USING (oid, relname) CROSS JOIN LATERAL aclexplode(relacl)
        WHERE grantee = to_regrole(CAST(:role AS text)))
""")

# Asked about the role, and about the one that asks as one of its members.
_LACKING = text("""
    SELECT who.name AS who, privilege, of_column, asked.name
    FROM unnest(CAST(:privileges AS text[]), CAST(:columns AS text[]), CAST(:names AS text[]))
        WITH ORDINALITY AS asked (privilege, of_column, name, place)
    CROSS JOIN (
        SELECT CAST(:role AS name) AS name
        UNION SELECT current_user WHERE pg_has_role(current_user, CAST(:role AS name), 'MEMBER')
    ) AS who
    WHERE NOT CASE
        WHEN asked.name LIKE '%(%' THEN to_regprocedure('public.' || asked.name) IS NULL
            OR has_function_privilege(who.name, to_regprocedure('public.' || asked.name), privilege)
        WHEN to_regclass('public.' || asked.name) IS NULL THEN true
        WHEN of_column IS NOT NULL THEN
            has_column_privilege(who.name, to_regclass('public.' || asked.name), of_column, privilege)
        WHEN asked.name LIKE '%_seq' THEN
            has_sequence_privilege(who.name, to_regclass('public.' || asked.name), privilege)
        ELSE has_table_privilege(who.name, to_regclass('public.' || asked.name), privilege)
    END
    ORDER BY who.name, place
""")

# From who is, or may become, a superuser or the owner of a table nothing is withheld.
_MAY = text("""
    SELECT has_database_privilege(CAST(:role AS name), current_database(), 'TEMPORARY') AS temporary,
        has_schema_privilege(CAST(:role AS name), 'public', 'CREATE') AS creates,
        has_parameter_privilege(CAST(:role AS name), 'session_replication_role', 'SET') AS replicates,
        coalesce(
            (SELECT 'a superuser' FROM pg_roles WHERE rolname = CAST(:role AS name) AND rolsuper),
            (SELECT 'the owner of ' || relname FROM pg_class
                WHERE relnamespace = CAST('public' AS regnamespace)
                    AND relname = ANY (CAST(:tables AS text[]))
                    AND pg_has_role(CAST(:role AS name), relowner, 'MEMBER')
                ORDER BY relname LIMIT 1)) AS own
""")

# Whatever way it came to the role: granted to it, to a role that it is a member of, or to everybody.
_BEYOND = text("""
    WITH relation AS MATERIALIZED (
        SELECT oid, CAST(relname AS text) AS name FROM pg_class
        WHERE relnamespace = CAST('public' AS regnamespace) AND relname = ANY (CAST(:tables AS text[]))
    ), held (privilege, of_column, name) AS (
        SELECT privilege, CAST(NULL AS text), name
        FROM relation CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
            AS privilege
        WHERE has_table_privilege(CAST(:role AS name), oid, privilege)
        UNION ALL
        SELECT privilege, CAST(attname AS text), name
        FROM relation JOIN pg_attribute ON attrelid = oid AND attnum > 0 AND NOT attisdropped
        CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'REFERENCES']) AS privilege
        WHERE has_column_privilege(CAST(:role AS name), oid, attnum, privilege)
            AND NOT has_table_privilege(CAST(:role AS name), oid, privilege)
        UNION ALL
        SELECT 'UPDATE', NULL, CAST(relname AS text)
        FROM relation JOIN pg_depend ON refobjid = relation.oid AND deptype IN ('a', 'i')
        JOIN pg_class ON pg_class.oid = objid
        WHERE CASE relkind WHEN 'S' THEN has_sequence_privilege(CAST(:role AS name), objid, 'UPDATE') END
        UNION ALL
        SELECT 'EXECUTE', NULL, CAST(CAST(oid AS regprocedure) AS text) FROM pg_proc
        WHERE pronamespace = CAST('public' AS regnamespace) AND prosecdef
            AND CAST(CAST(oid AS regprocedure) AS text) = ANY (CAST(:functions AS text[]))
            AND has_function_privilege(CAST(:role AS name), oid, 'EXECUTE')
    )
    SELECT CAST(:role AS text) AS who, privilege, of_column, name FROM held
    WHERE NOT EXISTS (
        SELECT FROM unnest(CAST(:privileges AS text[]), CAST(:columns AS text[]), CAST(:names AS text[]))
            AS needed (privilege, of_column, name)
        WHERE needed.privilege = held.privilege AND needed.name = held.name
            AND needed.of_column IS NOT DISTINCT FROM held.of_column)
    ORDER BY name, privilege, of_column
""")

# BEFORE each row is 1 + 2.
_BEFORE_ROWS = text("""
    SELECT CAST(relname AS text) AS relation, CAST(tgname AS text) AS name
    FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE relnamespace = CAST('public' AS regnamespace) AND NOT tgisinternal AND tgtype & 3 = 3
        AND tgenabled IN ('O', 'A') AND relname <> ALL (CAST(:others AS text[]))
    ORDER BY relname, tgname
""")
