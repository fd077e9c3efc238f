"""Which types of events there are: one list, which routes and the page for receivers go by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.rows import instant
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.events import EVENT_TYPES, MAILS, OutboxEvent

ROOT = Path(__file__).parents[2]


def test_the_page_for_receivers_lists_every_type() -> None:
    page = (ROOT / "docs" / "delivery.md").read_text("utf-8")
    table = page.split("## What is sent")[1].split("##")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(EVENT_TYPES)


def test_every_type_that_statements_write_is_known() -> None:
    """Their keys begin with the type, by which they are found here."""
    files = [file for kind in ("*.py", "*.sql") for file in (ROOT / "ticketflow_orch").rglob(kind)]
    sources = [file.read_text("utf-8") for file in files]
    written = {name for source in sources for name in re.findall(r"'([A-Z]\w+):' \|\|", source)}
    assert {"ReminderDue", "EventClosed", "StatementReady"} <= written <= EVENT_TYPES


def test_what_is_rendered_is_a_mail() -> None:
    assert {name for name, kind in KINDS.items() if kind.preparer} == MAILS


def test_another_type_is_not_written(engine: Engine) -> None:
    event = OutboxEvent("thing", "1", "Misspelt", {}, "1", instant("2026-06-01T00:00"))
    with engine.connect() as connection, pytest.raises(ValueError, match="'Misspelt' is not in EVENT_TYPES"):
        events.append(connection, event)
