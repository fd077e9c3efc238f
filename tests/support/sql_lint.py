"""The statements of `.sql` files, complete with their parts, linted by sqlfluff: `python -m tests.support.sql_lint`.

The files themselves hold parts that are no statements, which no linter can read. Whether Postgres accepts a statement
is asked in tests/db/test_sql_files.py.
"""

from __future__ import annotations

import re
import sys

import sqlfluff
from sqlfluff.core import FluffConfig

from tests.support.statements_held import complete

# A word in its place that is none of SQL's.
_BOUND = re.compile(r"%\((\w+)\)s")


def main() -> int:
    config = FluffConfig.from_path(".")
    found = [
        f"{where}, line {one['start_line_no']}: {one['code']} {one['description']}"
        for where, statement in complete().items()
        for one in sqlfluff.lint(_BOUND.sub(r"bound_\1", statement).replace("%%", "%") + "\n", config=config)
    ]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
