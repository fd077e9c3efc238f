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


def file_within(folder: Path, name: str) -> Path:
    """Where the file `name` is to be in `folder`, which is made; a path that leads there counts too.

    Raises:
        InvalidInput: it would be somewhere else, links and `..` followed, or there is no such place.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {folder} cannot be made ({error.strerror}); make it yourself.") from None
    place = ordinary_file(folder.absolute() / name)
    if not place.is_relative_to(folder.resolve()):
        raise InvalidInput(f"The file {name!r} would not be in {folder}; name one there, such as march.csv.")
    if place.parent != folder.resolve():
        raise InvalidInput(f"The file {name!r} would be in a folder below {folder}; name one without a folder.")
    return place
