"""What lies in an import folder: the files that are read, and the others, by name."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.importing.format import KINDS

ENDINGS = (".csv", ".csv.gz", ".parquet")
_NAMES = [kind.name for kind in KINDS]
_RIGHT = {f"{name}{ending}": name for name in _NAMES for ending in ENDINGS}
# From here on a name is that of a kind, misspelt.
_ALIKE = 0.75


@dataclass(frozen=True, slots=True)
class Found:
    """The `files` that an import reads, by name of kind, and the names of those that are `left_alone`."""

    files: dict[str, Path]
    left_alone: tuple[str, ...]


def find_files(folder: Path) -> Found:
    """What there is in `folder`. What is like nothing that an import reads is left alone.

    Raises:
        InvalidInput: there is no such folder, nothing to import in it, two files for one kind, or something whose name
            is almost that of a file to be read: it was meant to be.
    """
    try:
        if not folder.is_dir():
            raise InvalidInput(f"There is no folder {folder}; name one that holds {_NAMES[0]}.csv and the like.")
        there = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read ({error.strerror}); let this account read it.") from None
    files: dict[str, Path] = {}
    others = []
    for path in there:
        kind = _RIGHT.get(path.name)
        if kind is None:
            others.append(path.name)
        elif not path.is_file():
            raise InvalidInput(f"{path} is no file; put the file itself there.")
        elif kind in files:
            raise InvalidInput(
                f"The folder {folder} holds {files[kind].name} and {path.name}; keep one file for {kind}."
            )
        else:
            files[kind] = path
    _refuse_misnamed(folder, others, files)
    if not files:
        raise InvalidInput(
            f"The folder {folder} holds nothing to import; it needs at least one of {', '.join(_NAMES)}, "
            f"ending in {', '.join(ENDINGS)}."
        )
    return Found(files, tuple(map(escaped, others)))


def escaped(text: str) -> str:
    """`text` on one line, with escapes for what a terminal would not show, or would act upon."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text
    )


def _refuse_misnamed(folder: Path, names: list[str], files: dict[str, Path]) -> None:
    meant = {name: kind for name in names if (kind := _kind_meant(name)) is not None}
    if not meant:
        return
    found = "" if files else "nothing to import, but "
    listed = ", ".join(f"{escaped(name)}{_advice(name, kind, files)}" for name, kind in meant.items())
    they = "which is no name of a file to import; rename it, or take it"
    if len(meant) > 1:
        they = "which are no names of files to import; rename them, or take them"
    raise InvalidInput(f"The folder {folder} holds {found}{listed}, {they} out of the folder.")


def _kind_meant(name: str) -> str | None:
    """The kind that a file of this name was probably meant to be."""
    if name.startswith("."):
        return None
    stem = re.sub(r"[^a-z]+", "_", name.lower().partition(".")[0]).strip("_")
    contained = [kind for kind in _NAMES if kind in stem]
    return next(iter(contained or difflib.get_close_matches(stem, _NAMES, n=1, cutoff=_ALIKE)), None)


def _advice(name: str, kind: str, files: dict[str, Path]) -> str:
    if kind in files:
        return f" beside {files[kind].name}"
    ending = next((ending for ending in (".parquet", ".csv.gz") if ending in name.lower()), ".csv")
    return f" (did you mean {kind}{ending}?)"
