"""A small cluster of a test's own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.small_clusters import SMALL
from ticketflow_orch.local.postgres import EmbeddedServer


@pytest.fixture
def own(scratch: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(scratch / f"own-{uuid.uuid4().hex[:6]}", parameters=SMALL)
    yield server
    server.remove()
