"""What the tests of refused input share: a case, the platform it is tried on, and what the command says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from ticketflow_orch import cli
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import settings


@dataclass(frozen=True, slots=True)
class Bad:
    """A command line that is refused: `said` is its sentence, or the part of it that matters."""

    said: str
    arguments: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    code: int = 2


def bad(said: str, *arguments: str, code: int = 2, **environment: str | None) -> Any:
    """A case, called after its command line and its variables."""
    name = " ".join([*(f"{key}={value}" for key, value in environment.items()), *arguments])
    variables = {f"TICKETFLOW_{key}": value for key, value in environment.items()}
    return pytest.param(Bad(said, arguments, variables, code), id=name.encode("ascii", "backslashreplace").decode())


@dataclass(frozen=True, slots=True)
class World:
    """A home on a database of its own, with an organization and a movement in it."""

    server: EmbeddedServer
    engine: Engine
    url: URL
    home: Path
    definitions: dg.Definitions


def contents(engine: Engine) -> dict[str, int]:
    """How many rows each table has."""
    with engine.connect() as connection:
        tables = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        ).scalars()
        counts = [f"SELECT '{table}' AS name, count(*) FROM {table}" for table in tables]
        return dict(map(tuple, connection.execute(text(" UNION ALL ".join(counts))))) if counts else {}


@contextmanager
def variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """The environment with some variables changed, or gone where they are None."""
    with patch.dict(os.environ):
        for name, value in changes.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        settings.cache_clear()
        try:
            yield
        finally:
            settings.cache_clear()


def refusal(capfd: pytest.CaptureFixture[str], case: Bad) -> str:
    """What the console script says on stderr, after it has ended with the code of the case."""
    with variables(case.environment), patch.object(sys, "argv", ["ticketflow", *case.arguments]):
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
    said = capfd.readouterr().err
    assert end.value.code == case.code, said
    assert "Traceback" not in said
    return said


def require_refused(world: World, capfd: pytest.CaptureFixture[str], case: Bad) -> None:
    """The case is refused by its sentence, in one line or in the box of a usage error, and no table has changed."""
    before = contents(world.engine)
    said = refusal(capfd, case)
    # Usage errors come in a box, which breaks its lines.
    assert case.said in " ".join(said.replace("│", " ").split())
    assert said.startswith("Usage") or said.count("\n") == 1
    assert contents(world.engine) == before
