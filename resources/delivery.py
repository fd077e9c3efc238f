"""Where events go, as a resource."""

from collections.abc import Iterator
from contextlib import contextmanager

from resources.given import Given
from ticketflow_orch.outbox.delivery.configuration import Delivery, read_delivery
from ticketflow_orch.settings import settings


class DeliveryResource(Given):
    """The routes and transports of the file that TICKETFLOW_DELIVERY names."""

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        """The configuration as it is now; its transports are closed when the block ends.

        Raises:
            InvalidInput: something in it is missing or wrong.
        """
        delivery = read_delivery(settings())
        try:
            yield delivery
        finally:
            delivery.close()
