"""The relay's connections: how many it wants, and those whose statements are planned once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from ticketflow_orch.outbox.delivery.configuration import Delivery

# One plan is right whatever the parameters: from the few rows found first, by an index, to each row. The planner, which
# knows neither the window nor how soon a limit is reached, would read the whole outbox instead; and planning anew costs
# as much as a small claim.
_PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
PLANNED_ONCE = "; ".join(f"SET {name} = {value}" for name, value in _PLANNING.items())
_PLANNED_AS_EVER = "; ".join(f"RESET {name}" for name in _PLANNING)


def connections_for(delivery: Delivery) -> int:
    """How many connections a drain may want at once.

    Two a destination for the transactions of its producer and its writer, one for a lost event that is tried by itself,
    a few for commits, and one that listens.
    """
    return 4 * len(delivery.destinations) + 5


@contextmanager
def autocommit(engine: Engine) -> Iterator[Connection]:
    """A connection on which each statement is a transaction by itself, and is planned once."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(PLANNED_ONCE)
        yield connection
        connection.exec_driver_sql(_PLANNED_AS_EVER)
