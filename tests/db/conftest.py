"""What tests of the schema share."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.payable import close_owing
from tests.support.rows import add_event, add_organization
from tests.support.sql_statements import begin_month, begin_pass
from ticketflow_orch.months import Month


@pytest.fixture
def surrounded(engine: Engine) -> Engine:
    """A database with what the rows of all tables refer to."""
    organization = add_organization(engine)
    add_event(engine, organization)
    close_owing(engine, {organization: 1}, Month(2026, 2))
    begin_pass(engine, "2026-04-01")
    begin_month(engine, "2026-05-01")
    return engine
