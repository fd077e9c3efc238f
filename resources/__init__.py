"""What a run is given: the database, the clock, the outbox and the ways out of it.

Thin, without rules of their own, and nothing that a run could configure.
"""

from resources.clock import ClockResource
from resources.database import DatabaseResource
from resources.delivery import DeliveryResource
from resources.given import as_given
from resources.outbox import OutboxResource

__all__ = ["ClockResource", "DatabaseResource", "DeliveryResource", "OutboxResource", "as_given"]
