"""Business time as a resource."""

from dataclasses import dataclass
from datetime import datetime

from resources.given import Given
from ticketflow_orch import clock


@dataclass(frozen=True)
class ClockResource(Given):
    """The system's clock, or one that stands still at `fixed_at` (ISO 8601 with an offset): for tests, rehearsals."""

    fixed_at: str = ""

    def __post_init__(self) -> None:
        if self.fixed_at:
            clock.parse_instant(self.fixed_at)

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        return clock.now(clock.parse_instant(self.fixed_at) if self.fixed_at else None)
