"""Business time as a resource."""

from datetime import datetime

import dagster as dg
from pydantic import Field, field_validator

from ticketflow_orch import clock


class ClockResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The system's clock, or one that stands still: for tests, demos and rehearsals."""

    fixed_at: str = Field("", description="ISO 8601 instant with an offset; empty: the system's clock.")

    @field_validator("fixed_at")
    @classmethod
    def _is_an_instant(cls, value: str) -> str:
        return clock.parse_instant(value).isoformat() if value else ""

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        return clock.now(clock.parse_instant(self.fixed_at) if self.fixed_at else None)
