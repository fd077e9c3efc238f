"""The outbox as a resource."""

from sqlalchemy import Connection

from resources.given import Given
from ticketflow_orch.outbox import events


class OutboxResource(Given):
    """Where effects on the outside world are written down, in the transaction of their cause."""

    def append(self, connection: Connection, event: events.OutboxEvent) -> bool:
        """Write `event` in the caller's transaction; False when its key is there already."""
        return events.append(connection, event)
