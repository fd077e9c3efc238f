"""Secrets that an environment holds itself, or names a file of: `NAME`, or `NAME_FILE` as containers are given them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ticketflow_orch.errors import InvalidInput

FILE = "_FILE"
_LONGEST = 65_536


def secret(name: str, environment: Mapping[str, str]) -> str | None:
    """The value of the variable `name`, or the content of the file that `name`_FILE names; None where neither is set.

    What ends the file's only line is not part of it.

    Raises:
        InvalidInput: both are set, or the file cannot be read or is empty; names variable and file, never the value.
    """
    value, file = environment.get(name), environment.get(f"{name}{FILE}")
    if not file:
        return value or None
    if value:
        raise InvalidInput(f"{name} and {name}{FILE} are both set; unset one of them.")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            content = opened.read(_LONGEST).rstrip("\r\n")
    except OSError as error:
        raise InvalidInput(
            f"{name}{FILE}={file} cannot be read ({error.strerror}); name a file that this account may read."
        ) from None
    except ValueError:
        raise InvalidInput(f"{name}{FILE}={file} is no text in UTF-8; write it in that encoding.") from None
    if not content or "\n" in content or "\0" in content:
        raise InvalidInput(f"{name}{FILE}={file} does not hold one line; write the secret into it, and nothing else.")
    return content
