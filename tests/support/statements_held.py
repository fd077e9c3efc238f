"""The SQL that the modules of the project hold, complete with its parts: for a linter, and to be tried on a server."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import ticketflow_orch
from ticketflow_orch.db.sql_files import Statement

_NO_STATEMENTS = ("ticketflow_orch.migrations", "ticketflow_orch.__main__")
_STATEMENT = re.compile(r"\s*(?:WITH|SELECT|INSERT|UPDATE|DELETE|MERGE|CREATE|VALUES)\b")


@functools.cache
def texts() -> dict[str, str]:
    """All texts that modules hold, statements among them, with the first place where each stands."""
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(ticketflow_orch.__path__, "ticketflow_orch."):
        if not module.name.startswith(_NO_STATEMENTS):
            for name, value in vars(importlib.import_module(module.name)).items():
                for text in _texts(value):
                    found.setdefault(text, f"{module.name}.{name}")
    return found


def rendered() -> dict[str, Statement]:
    """The statements that modules hold, complete, by where they stand."""
    statements = ((where, text) for text, where in texts().items() if isinstance(text, Statement))
    return {f"{where} ({text.name}) {number}": text for number, (where, text) in enumerate(statements)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif type(value) is dict:
        yield from _texts(list(value.values()))
    elif type(value) in {list, tuple}:
        for each in value:
            yield from _texts(each)


def complete() -> dict[str, Statement]:
    """Those of `rendered` that are statements, and no parts of one by the word with which they begin."""
    return {where: statement for where, statement in rendered().items() if _STATEMENT.match(statement)}
