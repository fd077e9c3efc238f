"""The four group roles of an installation: set up by `grants.sql`, and compared with what the database has.

The owner's has what the migrations made, so that its members migrate and set these roles up. Roles belong
to the whole server: two installations on one server share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sqlalchemy import Connection, Engine, Row

from ticketflow_orch.db.advisory_locks import one_at_a_time
from ticketflow_orch.db.catalogue import OWNER_ROLE, ROLES, expected, grant_faults
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import PreconditionFailed

# Any constant serves, as long as every version of this project takes the same.
_TURN = 6_240_174
_LONGEST_WAIT = 60.0
GRANTS = "grants.sql"
# By whom this belongs to it is known whether the roles were set up; functions go by its owner too.
_FIRST_OF_ALL = "table outbox_event"


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """What setting the roles up changed, in words; nothing where all was as it should be.

    `left`: what is still not as it should be, since somebody else granted it.
    """

    made: tuple[str, ...]
    granted: tuple[str, ...]
    revoked: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many things were changed."""
        return len(self.made) + len(self.granted) + len(self.revoked)


def set_up_roles(engine: Engine) -> RoleChanges:
    """Make the roles, hand what the migrations made to the owner's, and grant each what it needs and no more.

    All in one transaction, which is taken back where it changes nothing.

    Raises:
        PreconditionFailed: names each right that the session's role lacks for it.
        Conflict: another `ticketflow roles` does not end.
    """
    with one_at_a_time(engine, _TURN, "`ticketflow roles`", _LONGEST_WAIT), engine.connect() as connection:
        lacked = connection.exec_driver_sql(_LACKED, _asked()).scalars().all()
        if lacked:
            name = connection.exec_driver_sql("SELECT current_user").scalar_one()
            raise PreconditionFailed(
                f"The role {name} may not set up the roles; it lacks {'; '.join(lacked)}. Have it granted that, or run "
                "this as the owner of the database."
            )
        absent = tuple(connection.exec_driver_sql(_ABSENT, _asked()).scalars())
        before = _held(connection)
        connection.exec_driver_sql(grants())
        _hand_over(connection)
        after = _held(connection)
        left = grant_faults(connection)
        changes = RoleChanges(absent, tuple(sorted(after - before)), tuple(sorted(before - after)), left)
        if changes.count:
            connection.commit()
        else:
            connection.rollback()
        return changes


def role_faults(connection: Connection) -> tuple[str, ...]:
    """What a role lacks, what it may do beyond what it needs, and which role is missing, in words; changes nothing."""
    absent = connection.exec_driver_sql(_ABSENT, _asked()).scalars().all()
    missing = tuple(f"there is no role {name}" for name in absent)
    found = connection.exec_driver_sql(_FOREIGN_OWNERS, _asked()).all()
    first = next((row for row in found if row.what == _FIRST_OF_ALL), None)
    if first is not None:
        missing += (f"the roles are not set up in this database, which belongs to {first.owner}",)
    return (*missing, *_foreign(found), *grant_faults(connection))


def foreign_owners(connection: Connection) -> tuple[str, ...]:
    """What belongs to somebody else than the owner's role, in words; nothing where that role owns nothing yet."""
    return _foreign(connection.exec_driver_sql(_FOREIGN_OWNERS, _asked()).all())


def _foreign(found: Sequence[Row[Any]]) -> tuple[str, ...]:
    if any(row.what == _FIRST_OF_ALL for row in found):
        return ()
    return tuple(f"{row.what} belongs to {row.owner} instead of {OWNER_ROLE}" for row in found)


def grants() -> str:
    """The statements that grant each role what it needs."""
    return resources.files("ticketflow_orch.db").joinpath(GRANTS).read_text("utf-8")


def _hand_over(connection: Connection) -> None:
    if not connection.exec_driver_sql(_IS_MEMBER, _asked()).scalar_one():
        connection.exec_driver_sql(f"GRANT {OWNER_ROLE} TO CURRENT_USER")
    for row in connection.exec_driver_sql(_FOREIGN_OWNERS, _asked()).all():
        connection.exec_driver_sql(row.handing)


def _held(connection: Connection) -> frozenset[str]:
    return frozenset(connection.exec_driver_sql(_HELD, _asked()).scalars())


def _asked() -> Mapping[str, Any]:
    built = expected()
    tables = [*built.tables, "alembic_version"]
    return {"roles": list(ROLES), "owner": OWNER_ROLE, "tables": tables, "functions": built.functions}


_ABSENT = sql(__file__, "absent")
_FOREIGN_OWNERS = sql(__file__, "foreign_owners")
_HELD = sql(__file__, "held")
_IS_MEMBER = sql(__file__, "is_member")
_LACKED = sql(__file__, "lacked")
