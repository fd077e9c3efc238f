"""What people decide about many events of the outbox at once: counted first, then each as if it were the only one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.outbox.admin import decided_elsewhere
from ticketflow_orch.outbox.events import require_event_type

_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Which:
    """Which events: those in one of `states` for which all that is given holds.

    `older_than`: it occurred longer ago. `error`: its last error has this text in it, in whatever case.
    """

    states: Sequence[str]
    event_type: str | None = None
    older_than: timedelta | None = None
    error: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows it down."""
        return self.event_type is None and self.older_than is None and self.error is None


@dataclass(frozen=True, slots=True)
class Kind:
    """So many events of a type in a state, since when, and the last error of one of them."""

    event_type: str
    state: str
    events: int
    since: datetime
    error: str | None


def count(connection: Connection, which: Which) -> tuple[Kind, ...]:
    """How many events `which` are, by type and state.

    Raises:
        InvalidInput: there is no such type, or nothing narrows the choice down.
    """
    if which.is_everything:
        raise InvalidInput("Say which events: ids, or --type, --older-than or --error.")
    if which.event_type is not None:
        require_event_type(which.event_type)
    return tuple(Kind(**row) for row in connection.exec_driver_sql(_COUNT, _values(which)).mappings())


def decide(engine: Engine, which: Which, one: Callable[[Connection, UUID], None]) -> tuple[int, tuple[str, ...]]:
    """Do `one` to each of the events `which`, some at a time; how many there were, and why others were refused.

    Where somebody else was quicker with an event, their decision stays.
    """
    with engine.connect() as connection:
        found = connection.exec_driver_sql(_IDS, _values(which)).scalars().all()
    done = 0
    refused: list[str] = []
    for start in range(0, len(found), _AT_ONCE):
        with transaction(engine) as connection:
            for event_id in found[start : start + _AT_ONCE]:
                try:
                    one(connection, event_id)
                except TicketflowError as error:
                    refused.append(str(error))
                else:
                    done += 1
    return done, tuple(refused)


def _values(which: Which) -> dict[str, object]:
    return {
        "states": list(which.states),
        "event_type": which.event_type,
        "older_than": which.older_than,
        "error": which.error,
        "others": decided_elsewhere(),
    }


_WHICH = sql(__file__, "which")
_COUNT = sql(__file__, "count", which=_WHICH)
_IDS = sql(__file__, "ids", which=_WHICH)
