"""How payouts must be delivered, whatever else the configuration of delivery says."""

from __future__ import annotations

from ticketflow_orch.delivery.configuration import Delivery
from ticketflow_orch.errors import InputError
from ticketflow_orch.payouts.request import EVENT_TYPE


def require_safe_route(delivery: Delivery) -> None:
    """Refuse a route that could pay twice: one that sends again what the provider may have paid and forgotten.

    Raises:
        InputError: the configuration says so.
    """
    route = delivery.route(EVENT_TYPE)
    if route.remembers is not None and route.in_doubt == "resend":
        raise InputError(
            f"routes.{EVENT_TYPE}.in_doubt = 'resend' would pay twice what {route.destination} has forgotten; "
            "write 'look_up' or 'hold'."
        )
