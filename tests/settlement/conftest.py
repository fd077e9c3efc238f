"""What the tests of settlement share."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.rows import add_organization


@pytest.fixture
def hall(engine: Engine) -> int:
    return add_organization(engine, external_ref="hall")
