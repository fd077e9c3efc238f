"""What other rooms decide about events that they have written: woken, asked for again, held, ended by a person's word.

A room that keeps an account of its own beside its events (payouts) changes both in one transaction, most often in one
statement. So all but `decide` return the SQL of an update, to stand in a statement whose `source` names the events: a
CTE, or a table. Deliveries and the desk of operators are not here: see `relay/` and `admin`.
"""

from __future__ import annotations

from typing import Literal

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql


def decide(connection: Connection, outbox_id: int, state: Literal["HELD", "DELIVERED", "SUPPRESSED"]) -> None:
    """Give the event of this id the state that a person decided; the caller has locked it and looked at its state."""
    connection.exec_driver_sql(_DECIDE, {"id": outbox_id, "state": state})


def waking(source: str, dedupe_key: str) -> str:
    """The SQL that makes held events due, those whose key the SQL `dedupe_key` says of a row of `source`."""
    return sql(__file__, "wake", source=source, dedupe_key=dedupe_key)


def asking_again(source: str, keep_doubt: str) -> str:
    """The SQL that makes the events of the column `outbox_id` of `source` due, with fresh attempts.

    `keep_doubt` is SQL: whether the receiver is asked first what it has. Otherwise the doubt is over.
    """
    return sql(__file__, "ask_again", source=source, keep_doubt=keep_doubt)


def holding(source: str) -> str:
    """The SQL that holds the events of the column `outbox_id` of `source`, which no relay has."""
    return sql(__file__, "hold", source=source)


def taking_back(source: str) -> str:
    """The SQL that holds the events of the column `outbox_id` of `source`, which a relay has and has not sent.

    Returns their `event_id`. The relay is overtaken by that, and its attempt does not count.
    """
    return sql(__file__, "take_back", source=source)


_DECIDE = sql(__file__, "decide")
