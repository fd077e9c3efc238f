"""A database that is backed up and restored: a copy of it as it was, what it owes, and what health says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Engine

from tests.conftest import fresh_database
from tests.support.payable import MARCH, NOW, close_with
from tests.support.rows import add_organization
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.snapshot import read_situation
from ticketflow_orch.settings import Settings

NAMES = [f"org-{number:03}" for number in range(6)]
OWED = [(name, "EUR", 1_000 + number) for number, name in enumerate(NAMES)]
LATER = timedelta(hours=2)


@contextmanager
def backup(server: EmbeddedServer, engine: Engine) -> Iterator[Engine]:
    """An engine on a copy of the database as it is now."""
    engine.dispose()
    with fresh_database(server, str(engine.url.database)) as url:
        copy = connect_engine(url, "restored", connections=10)
        try:
            yield copy
        finally:
            copy.dispose()


def owe(engine: Engine, owed: Sequence[tuple[str, str, int]] = OWED, names: Sequence[str] = NAMES) -> None:
    """Close March with what is owed to the organizations of `names`, which are added in this order."""
    ids = {name: add_organization(engine, external_ref=name) for name in names}
    close_with(engine, [(ids[name], currency, amount) for name, currency, amount in owed])


def health(engine: Engine) -> list[str]:
    """The lines of health about a database."""
    situation = read_situation(engine, Settings(fixed_clock=NOW, first_month=str(MARCH)))
    return list(problems(situation, "Europe/Madrid", timedelta(days=300)))
