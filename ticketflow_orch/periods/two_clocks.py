"""Which of two clocks decides about what cannot be undone: the earlier one, and none where they are far apart."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.db.engine import clocks
from ticketflow_orch.errors import PreconditionFailed

# How far this host's clock may be from the database's, in seconds.
LARGEST_DIFFERENCE = 60.0


def judged_at(connection: Connection, now: datetime, undone: str) -> datetime:
    """The instant by which it is judged whether something is over: `now` (aware), or what the database has if earlier.

    `undone` says what is not done where the clocks are far apart, such as "settle nothing". In a database that is made
    for rehearsals `now` alone decides.

    Raises:
        PreconditionFailed: this host's own clock is further from the database's than LARGEST_DIFFERENCE: one of the two
            is wrong, and nobody can say which.
    """
    database_now, difference = clocks(connection)
    if abs(difference) > LARGEST_DIFFERENCE:
        direction = "ahead of" if difference > 0 else "behind"
        raise PreconditionFailed(
            f"This host's clock is {abs(difference):.0f} s {direction} the database's, and more than "
            f"{LARGEST_DIFFERENCE:.0f} s {undone}; correct the clock that is wrong."
        )
    is_rehearsal = connection.exec_driver_sql("SELECT rehearsal FROM installation").scalar_one()
    return now if is_rehearsal else min(now, database_now)
