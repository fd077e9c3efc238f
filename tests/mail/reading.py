"""Mails as their readers see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any
from uuid import UUID

from tests.support.rows import instant
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import Prepared, Rendered, Suppressed

EVENT_ID = UUID("0b9f1a52-7c1e-4d3c-9a55-2f6f1f3f7a10")


def event(
    event_type: str, payload: Mapping[str, Any], event_id: UUID = EVENT_ID, rendered: bytes | None = None
) -> Message:
    return Message(
        event_id,
        event_type,
        "any",
        "any",
        json.dumps(payload),
        instant("2026-06-01T18:00"),
        rendered,
        attempt=1 if rendered is None else 2,
    )


def read(prepared: Prepared) -> EmailMessage:
    assert isinstance(prepared, Rendered), prepared
    return message_from_bytes(prepared.body, policy=policy.SMTP)


def reason(prepared: Prepared) -> str:
    assert isinstance(prepared, Suppressed), "it is rendered"
    return prepared.reason


def text_of(mail: EmailMessage, kind: str = "plain") -> str:
    part = mail.get_body((kind,))
    assert part is not None
    return str(part.get_content()).replace("\r\n", "\n")
