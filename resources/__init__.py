"""What a run is given: the database, the clock, the outbox and the ways out of it.

Thin, configurable, and without rules of their own.
"""

from resources.clock import ClockResource
from resources.database import DatabaseResource
from resources.delivery import DeliveryResource
from resources.outbox import OutboxResource

__all__ = ["ClockResource", "DatabaseResource", "DeliveryResource", "OutboxResource"]
