"""Back-off: when an event that was not delivered is tried again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

from ticketflow_orch.db.sql_files import sql


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: a wait between nothing and `base`, doubled for every further attempt that counts, at most `cap`.

    A receiver's own Retry-After is a lower bound, up to `longest_wish`. What came when too much came at once waits for
    `longest_moment` at most.
    """

    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(hours=1)
    longest_wish: timedelta = timedelta(days=1)
    longest_moment: timedelta = timedelta(minutes=5)

    def parameters(self) -> dict[str, float]:
        """The parameters that `NEXT_TRY` takes, in seconds."""
        return {name: length.total_seconds() for name, length in asdict(self).items()}


NEXT_TRY = sql(__file__, "next_try")
