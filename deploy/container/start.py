"""The first process of a container: takes over what `ticketflow env` says, then becomes the command that it is given.

A variable NAME_FILE names a file whose content is the value of NAME, as a container's secret is. What Dagster runs
needs what the database has decided, so it is refused until the database answers: the container's restart asks again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.secret_variables import FILE, secret

_SECRETS = ("TICKETFLOW_DATABASE_URL", "TICKETFLOW_DAGSTER_DATABASE_URL")
# By it the code location has the months of the database, not those of the default.
_DECIDED = "TICKETFLOW_FIRST_MONTH"


def main(command: list[str]) -> None:
    """Become `command`; ends with 2 where what is needed for it is missing."""
    for name in _SECRETS:
        try:
            value = secret(name, os.environ)
        except InvalidInput as error:
            _refuse(str(error))
        if value is None:
            _refuse(f"Neither {name} nor {name}{FILE} is set; a container has no database of its own.")
        os.environ[name] = value
        os.environ.pop(f"{name}{FILE}", None)
    # Commands of ours find out for themselves, and `migrate` makes what is asked for here.
    if Path(command[0]).name != "ticketflow":
        os.environ.update(_environment())
    os.execvp(command[0], command)  # noqa: S606


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"{why}\n")
    sys.exit(2)


def _environment() -> dict[str, str]:
    said = subprocess.run(["ticketflow", "env", "--json"], stdout=subprocess.PIPE, check=False, text=True)
    if said.returncode != 0:
        sys.exit(said.returncode)
    variables: dict[str, str] = json.loads(said.stdout)
    if _DECIDED not in variables:
        sys.stderr.write("The database has not said which months there are: it does not answer, or is not migrated.\n")
        sys.exit(1)
    return variables


if __name__ == "__main__":
    main(sys.argv[1:])
