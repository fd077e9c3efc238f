"""Payouts on their way to a payment provider, through the real relay; what the provider's books and ours say."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from tests.support.payable import MARCH, close_with, request, rows
from tests.support.provider import Provider
from tests.support.rows import add_organization
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.delivery.configuration import Delivery, read_delivery
from ticketflow_orch.outbox.relay import Backoff, Drained, Patience, drain
from ticketflow_orch.payouts.comparing import Difference, Listed, compare, read_listed
from ticketflow_orch.settings import read_settings

SECRET = {"PAYMENT_SECRET": "whsec_" + base64.b64encode(bytes(range(32))).decode()}
# Long enough for a provider on a busy machine, short enough to be waited for.
DEADLINE = 0.5
IMPATIENT = Backoff(base=timedelta(milliseconds=20), cap=timedelta(milliseconds=200))
# A provider on a bad day fails often, and is back at once.
BRIEF = Patience(first=timedelta(seconds=0.1), longest=timedelta(seconds=1))

CONFIGURATION = """
[destinations.alerts]
transport = "file"

[destinations.provider]
transport = "webhook"
url = "{url}"
look_up_url = "{url}/{{aggregate_id}}"
secrets = ["PAYMENT_SECRET"]
allow_private = true
deadline = "PT{deadline}S"

[routes.default]
destination = "alerts"

[routes.PayoutRequested]
destination = "provider"
attempts = {attempts}
in_doubt = "{in_doubt}"
remembers = "PT{remembers}S"
"""


def configuration(provider: Provider, folder: Path, **route: Any) -> Path:
    """A file that sends payouts to `provider` and all else to a file in `folder`."""
    options = {"attempts": 50, "in_doubt": "look_up", "remembers": 3600, "deadline": DEADLINE}
    path = folder / "delivery.toml"
    path.write_text(CONFIGURATION.format(url=provider.url, **options | route), "utf-8")
    return path


def delivery(path: Path) -> Delivery:
    """What the configuration at `path` says, with its folder as home."""
    settings = read_settings().model_copy(update={"delivery": path, "home": path.parent})
    return read_delivery(settings, SECRET)


def pay(engine: Engine, to: Delivery, seconds: float = 120, patience: float = 1) -> Drained:
    """Relay until nothing is left to do with any payout, or `seconds` are over."""
    try:
        while True:
            drained = drain(
                engine, to, KINDS, budget=seconds, patience=patience, backoff=IMPATIENT, patience_with=BRIEF
            )
            if not under_way(engine) or (seconds := seconds - drained.seconds) <= 0:
                return drained
    finally:
        to.close()


def under_way(engine: Engine) -> int:
    """How many events that ask for payouts the relay still has to do with."""
    found = rows(
        engine,
        "SELECT count(*) FROM outbox_event WHERE available_at IS NOT NULL AND event_type = 'PayoutRequested'",
    )
    return int(found[0][0])


def owe(engine: Engine, payouts: int = 12) -> list[tuple[str, str, int]]:
    """Request so many payouts of March, in two currencies; what the provider's books must say in the end."""
    owed = [
        (add_organization(engine, external_ref=f"org-{n:03}"), "JPY" if n % 3 == 0 else "EUR", 1_000 + 7 * n)
        for n in range(payouts)
    ]
    close_with(engine, owed)
    request(engine)
    return [(f"org-{n:03}", currency, amount) for n, (_, currency, amount) in enumerate(owed)]


def states(engine: Engine) -> dict[str, int]:
    """How many payouts are in which state."""
    found = rows(engine, "SELECT state, count(*) FROM payout WHERE month = :month GROUP BY 1", month=MARCH.first_day)
    return dict(found)  # type: ignore[arg-type]


def differences(engine: Engine, listed: list[Listed], complete: Month | None = None) -> list[Difference]:
    """Where a provider's list and our payouts do not agree."""
    with engine.connect() as connection:
        return list(compare(connection, listed, complete))


def books(provider: Provider) -> list[Listed]:
    """A provider's books as the list that it would give."""
    return list(read_listed(json.dumps(asdict(entry)) for entry in provider.entries))
