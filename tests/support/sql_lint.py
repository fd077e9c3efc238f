"""The statements of `.sql` files, complete with their parts, linted by sqlfluff: `python -m tests.support.sql_lint`.

The files themselves hold parts that are no statements, which no linter can read. Whether Postgres accepts a statement
is asked in tests/db/test_sql_files.py.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator

import sqlfluff
from sqlfluff.core import FluffConfig

import ticketflow_orch
from ticketflow_orch.db.sql_files import Statement

_STATEMENT = re.compile(r"(?:--.*\n|\s)*(?:WITH|SELECT|INSERT|UPDATE|DELETE|MERGE)\b")
# A word in its place that is none of SQL's.
_BOUND = re.compile(r"%\((\w+)\)s")
_NO_STATEMENTS = ("ticketflow_orch.migrations", "ticketflow_orch.__main__")


def statements() -> Iterator[tuple[str, Statement]]:
    """Each complete statement that a module of the project names, with where it stands."""
    for module in pkgutil.walk_packages(ticketflow_orch.__path__, "ticketflow_orch."):
        if module.name.startswith(_NO_STATEMENTS):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Statement) and _STATEMENT.match(value):
                yield f"{module.name}: {value.name}", value


def main() -> int:
    config = FluffConfig.from_path(".")
    found = [
        f"{where}, line {one['start_line_no']}: {one['code']} {one['description']}"
        for where, statement in dict(statements()).items()
        for one in sqlfluff.lint(_BOUND.sub(r"bound_\1", statement).replace("%%", "%") + "\n", config=config)
    ]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
