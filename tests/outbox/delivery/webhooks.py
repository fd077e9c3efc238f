"""A transport of webhooks to a receiver of a test."""

from __future__ import annotations

from typing import Any

from tests.outbox.delivery.messages import SECRETS
from ticketflow_orch.outbox.delivery.destinations import WebhookDestination, webhook_secrets
from ticketflow_orch.outbox.delivery.webhook import WebhookTransport


def transport_to(url: str, **options: Any) -> WebhookTransport:
    described = {"transport": "webhook", "url": url, "secrets": list(SECRETS), "allow_private": True, "deadline": 2}
    destination = WebhookDestination.model_validate(described | options)
    return WebhookTransport(destination, webhook_secrets(destination, SECRETS | {"TOKEN": "Bearer 42"}))
