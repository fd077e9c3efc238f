"""Statements that lie in an `.sql` file beside the module that runs them.

A file holds named queries, each with a line that says what it is for and which index it uses::

    -- name: oldest_due
    -- The events that have waited longest; by outbox_event_due.
    SELECT id FROM outbox_event WHERE available_at <= %(now)s::timestamptz ...

What is bound is written as psycopg writes it, `%(name)s`, cast by `::type` where Postgres cannot infer the type, and a
percent sign is doubled. `{name}` is a part that several statements share; the module that owns it says what it stands
for and which aliases and binds it needs. Run one with `connection.exec_driver_sql(_OLDEST_DUE, {"now": now})`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")
# For who reads the file; the driver and the server would read it with each execution.
_COMMENT = re.compile(r"^[ \t]*--.*\n?", re.MULTILINE)


class Statement(str):
    """One statement, complete, with psycopg's placeholders; `name` is its name in the file."""

    __slots__ = ("name",)

    name: str


def sql(module_file: str, name: str, **parts: str | int) -> Statement:
    """The query `name` of the file beside `module_file` (its `__file__`), each `{part}` replaced by what is given.

    Raises:
        KeyError: there is no such query, or a part of it is not given. Both show when the module is imported.
    """
    found = Statement(
        _PART.sub(lambda part: str(parts[part[1]]), _queries(Path(module_file).with_suffix(".sql"))[name])
    )
    found.name = name
    return found


@functools.cache
def _queries(file: Path) -> dict[str, str]:
    _, *found = _NAME.split(file.read_text("utf-8"))
    return dict(
        zip(found[::2], (_COMMENT.sub("", query).strip().removesuffix(";") for query in found[1::2]), strict=True)
    )
