"""`ticketflow alerts`: what stands, the most urgent first, and what a person ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.support.alerted import kinds, note
from tests.support.commands import lines, refusal
from tests.support.homes import fresh_home, variables_for
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.alerts import Alert


@pytest.fixture
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[Path]:
    # Dagster's database is not asked for.
    with fresh_home(scratch, **variables_for(url, server.url("nowhere"))) as home:
        yield home


@pytest.mark.usefixtures("home")
def test_what_stands_is_listed_and_ended_by_hand(engine: Engine) -> None:
    assert lines("alerts", "list") == ["No alert is open."]
    note(engine, Alert("RowLeftOut", "one", {"row": 1}, "close_events"), Alert("RowLeftOut", "two", {}, "close_events"))
    note(engine, Alert("PayoutContradicted", "p/REJECTED", {}, "p"))
    header, first, second = lines("alerts", "list")
    assert header.split()[:4] == ["id", "severity", "kind", "about"]
    assert first.split()[1:4] == ["page", "PayoutContradicted", "p"]
    assert second.split()[1:4] == ["ticket", "RowLeftOut", "close_events"]
    alerts = [json.loads(line) for line in lines("alerts", "list", "--json")]
    assert [alert["occurrences"] for alert in alerts] == [1, 2]
    number = str(alerts[1]["id"])
    ended = lines("alerts", "resolve", number, "--by", "ada")
    assert ended == ["RowLeftOut close_events is over, after 2 times."]
    assert kinds(engine)[-1] == "AlertResolved"
    assert refusal("alerts", "resolve", number).startswith(f"No alert {number} is open; ")
    assert len(lines("alerts", "list")) == 2
    assert "ada" in "".join(lines("alerts", "list", "--all"))
