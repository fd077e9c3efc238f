"""Messages and certificates for tests of transports."""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from pathlib import Path

import trustme

from ticketflow_orch.outbox.delivery import Message

SECRETS = {
    "TICKETFLOW_WEBHOOK_SECRET": "whsec_" + base64.b64encode(bytes(range(32))).decode(),
    "TICKETFLOW_WEBHOOK_SECRET_OLD": "whsec_" + base64.b64encode(b"the secret of last year, retired").decode(),
}


def message(body: bytes | None = None, *, aggregate_id: str = "r-1", attempt: int = 1) -> Message:
    """An event of its own; without `body`, the JSON envelope of its payload."""
    payload = {"reservation": aggregate_id, "buyer": "Zoë"}
    return Message(
        event_id=uuid.uuid4(),
        event_type="ReservationExpired",
        aggregate_type="reservation",
        aggregate_id=aggregate_id,
        data=json.dumps(payload, ensure_ascii=False),
        occurred_at=datetime(2026, 3, 1, 9, tzinfo=UTC),
        rendered=body,
        attempt=attempt,
    )


def mail(recipient: str = "ana@example.org", text: str = "It begins at nine.\n.\n..Bring it.\n") -> bytes:
    """A mail as a preparer renders it."""
    made = EmailMessage(policy=policy.SMTP)
    made["From"] = "TicketFlow <tickets@ticketflow.example>"
    made["To"] = recipient
    made["Subject"] = "Mañana: «Concert»"
    made["Message-ID"] = "<1@ticketflow.example>"
    made.set_content(text)
    made.add_alternative("<p>It begins at nine.</p>", subtype="html")
    return made.as_bytes()


def certificates(folder: Path, *names: str) -> tuple[Path, ssl.SSLContext]:
    """The file of a new authority's certificate, and what a server called `names` needs to speak TLS under it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    file = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return file, context


def no_commit() -> None:
    """The lease is ours."""
