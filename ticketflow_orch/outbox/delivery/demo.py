"""The demo's payment provider: a file, and the answer that a provider would give."""

from __future__ import annotations

import json

from ticketflow_orch.outbox.delivery import Commit, Message, Outcome, Verdict
from ticketflow_orch.outbox.delivery.file import FileTransport

ORGANIZATIONS = "demo-"


class DemoProvider(FileTransport):
    """Writes each payout to the file at `path` and confirms it; nothing is paid.

    It confirms payouts of the demo's organizations and refuses all others, so that no real one is ever taken for paid.
    Its answers follow from the event alone: asked again, it says the same.
    """

    def send(self, message: Message, commit: Commit) -> Outcome:
        """Append the line of `message`, then answer as a provider does."""
        organization = str(message.payload.get("organization", ""))
        if not organization.startswith(ORGANIZATIONS):
            return Outcome(
                Verdict.REFUSED,
                f"The demo's provider pays nobody, and {organization!r} is none of the demo's organizations; name a "
                "provider in TICKETFLOW_DELIVERY.",
            )
        written = super().send(message, commit)
        return written if written.verdict is not Verdict.DELIVERED else _confirmed(message)


def _confirmed(message: Message) -> Outcome:
    asked = {name: message.payload[name] for name in ("reference", "amount", "currency")}
    answer = {"status": "confirmed", "provider_ref": f"demo-{message.payload['reference']}"}
    return Outcome(Verdict.DELIVERED, status=200, response=json.dumps(answer | asked))
