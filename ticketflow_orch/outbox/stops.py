"""What nothing is delivered to, or of, until it is resumed: the only writer of `delivery_stop`.

The relay stops a destination that is gone, an operator whatever there is, and who pays out the type that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection

StopKind = Literal["DESTINATION", "EVENT_TYPE"]


@dataclass(frozen=True, slots=True)
class Stop:
    """What is not delivered until it is resumed."""

    kind: StopKind
    name: str
    reason: str
    stopped_by: str
    stopped_at: datetime


def stop(connection: Connection, kind: StopKind, name: str, reason: str | None, by: str) -> datetime | None:
    """Deliver nothing to a destination, or of a type; since when, or None where it is stopped already."""
    values = {"kind": kind, "name": name, "reason": reason, "by": by}
    return connection.exec_driver_sql(_STOP, values).scalar_one_or_none()


def resume(connection: Connection, kind: StopKind, name: str) -> bool:
    """Deliver again what was stopped; whether it was."""
    return bool(connection.exec_driver_sql(_RESUME, {"kind": kind, "name": name}).rowcount)


def stop_of(connection: Connection, kind: StopKind, name: str) -> Stop | None:
    """By whom, why and since when it is stopped; None where it is not."""
    return next((each for each in stops(connection) if (each.kind, each.name) == (kind, name)), None)


def stops(connection: Connection) -> tuple[Stop, ...]:
    """All that is stopped, in the order of names."""
    return tuple(Stop(**row) for row in connection.exec_driver_sql(_STOPS).mappings())


_STOP = """
    INSERT INTO delivery_stop (kind, name, reason, stopped_by) VALUES (%(kind)s, %(name)s, %(reason)s, %(by)s)
    ON CONFLICT (kind, name) DO NOTHING RETURNING stopped_at
"""

_RESUME = "DELETE FROM delivery_stop WHERE kind = %(kind)s AND name = %(name)s"

_STOPS = "SELECT kind, name, reason, stopped_by, stopped_at FROM delivery_stop ORDER BY kind, name"
