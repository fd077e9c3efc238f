"""A month of business to be settled under attack: a fresh copy for every test, and the books of a clean run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.engine import URL

from tests.chaos.books import Books, fill, read_books
from tests.chaos.settlers import Settler
from tests.conftest import TEMPLATE, fresh_database, run_sql
from tests.support.settled import settle
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Scene:
    """A database in which March waits to be settled, and what the books say after a run that nobody disturbed."""

    template: str
    clean: Books


@pytest.fixture(scope="session")
def scene(server: EmbeddedServer) -> Iterator[Scene]:
    template, settled = (f"chaos_{uuid.uuid4().hex[:12]}" for _ in range(2))
    run_sql(server.url(), f"CREATE DATABASE {template} TEMPLATE {TEMPLATE}")
    engine = connect_engine(server.url(template), "chaos setup")
    fill(engine)
    engine.dispose()
    run_sql(server.url(), f"CREATE DATABASE {settled} TEMPLATE {template}")
    engine = connect_engine(server.url(settled), "chaos clean run")
    settle(engine)
    clean = read_books(engine)
    engine.dispose()
    yield Scene(template, clean)
    for name in (template, settled):
        run_sql(server.url(), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def clean(scene: Scene) -> Books:
    """What the books say after a run that nobody disturbed."""
    return scene.clean


@pytest.fixture
def url(server: EmbeddedServer, scene: Scene) -> Iterator[URL]:
    """The URL of a fresh copy of the scene."""
    with fresh_database(server, scene.template) as url:
        yield url


@pytest.fixture
def start_settler(url: URL) -> Iterator[Callable[..., Settler]]:
    """Starts processes that settle March; whatever is left of them in the end is killed."""
    started: list[Settler] = []

    def start(**task: Any) -> Settler:
        started.append(Settler(url, **task))
        return started[-1]

    yield start
    for settler in started:
        settler.kill()
