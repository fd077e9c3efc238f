"""A receiver of webhooks for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sinks.http_receiver import HttpReceiver


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as receiver:
        yield receiver
