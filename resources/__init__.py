"""What a run is given: the database, the clock and the outbox. Thin, configurable, and without rules of their own."""

from resources.clock import ClockResource
from resources.database import DatabaseResource
from resources.outbox import OutboxResource

__all__ = ["ClockResource", "DatabaseResource", "OutboxResource"]
