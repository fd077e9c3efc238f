"""Files that a command is asked to write, each put in its place whole: which places there are."""

from __future__ import annotations

from pathlib import Path

from ticketflow_orch.errors import InvalidInput


def ordinary_file(path: Path) -> Path:
    """Where the file `path` is or is to be, its links followed: what another file may take the place of.

    Raises:
        InvalidInput: a folder is there, or a device or pipe, or there is no such place.
    """
    try:
        place = path.resolve()
        if place.is_dir():
            raise InvalidInput(f"{path} is a folder; name a file there.")
        if place.exists() and not place.is_file():
            raise InvalidInput(f"{path} is no ordinary file; name one, or one that is not there yet.")
    except (OSError, RuntimeError, ValueError) as error:
        # Too long, a loop of links, or no name at all.
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"The file {str(path)!r} cannot be written ({reason}); name another one.") from None
    return place
