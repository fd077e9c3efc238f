"""Places in a settlement, seen from SQLAlchemy's events: the product knows nothing of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Engine, event

BEGIN = "INSERT INTO settlement_pass"
PLAN = "UPDATE settlement_pass SET planned_at"
TAKE_CHUNK = "FOR UPDATE SKIP LOCKED"
POST = "INSERT INTO ledger_entry"
CHUNK_DONE = "UPDATE settlement_chunk SET state = 'DONE'"
SPLIT = "UPDATE settlement_chunk SET high_id"
PARK = "INSERT INTO parked_organization"
FINISH = "UPDATE settlement_pass SET state = 'DONE'"

_MARK = "place"


@dataclass(frozen=True, slots=True)
class Place:
    """The `occurrence`-th moment before or after a statement that contains `statement`, or its transaction's commit."""

    moment: Literal["before", "after", "before commit", "after commit"]
    statement: str
    occurrence: int = 1


def at(engine: Engine, place: Place, act: Callable[[], None]) -> None:
    """Call `act` at `place`, in the thread that gets there."""
    times = itertools.count(1)

    def arrive() -> None:
        if next(times) == place.occurrence:
            act()

    def before_statement(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if place.moment == "before" and place.statement in statement:
            arrive()

    def after_statement(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if place.statement in statement:
            if place.moment == "after":
                arrive()
            connection.info[_MARK] = True

    def before_commit(connection: Connection) -> None:
        if place.moment == "before commit" and connection.info.get(_MARK):
            arrive()

    # A connection is given back to the pool right after its transaction ended.
    def after_commit(dbapi_connection: Any, record: Any) -> None:
        if record.info.pop(_MARK, False) and place.moment == "after commit":
            arrive()

    event.listen(engine, "before_cursor_execute", before_statement)
    event.listen(engine, "after_cursor_execute", after_statement)
    event.listen(engine, "commit", before_commit)
    event.listen(engine, "checkin", after_commit)
