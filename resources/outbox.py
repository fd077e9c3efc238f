"""The outbox as a resource."""

from sqlalchemy import Connection

from resources.given import Given
from ticketflow_orch import outbox


class OutboxResource(Given):
    """Where effects on the outside world are written down, in the transaction of their cause."""

    def append(self, connection: Connection, event: outbox.OutboxEvent) -> bool:
        """Write `event` in the caller's transaction; False when its key is there already."""
        return outbox.append(connection, event)
