"""Where statements are put: a folder, or object storage by its URL. A file is there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import quote

from ticketflow_orch.errors import InvalidInput

if TYPE_CHECKING:
    from upath import UPath

_DRAFTS = ".drafts"
_DRAFT_FORGOTTEN_AFTER = 24 * 60 * 60.0
_LONGEST_NAME = 120


def safe_name(reference: str) -> str:
    """`reference` as the name of a file or folder that no other reference has, whatever characters it is made of."""
    quoted = quote(reference, safe="")
    if len(quoted) > _LONGEST_NAME:
        # A plus sign is quoted, so no short reference ends in this way.
        quoted = f"{quoted[: _LONGEST_NAME - 65]}+{sha256(reference.encode()).hexdigest()}"
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, here or in object storage."""

    root: UPath | Path

    @classmethod
    def at(cls, address: str | Path) -> Place:
        """The place called `address`: a path, or a URL such as s3://bucket/statements.

        Raises:
            InvalidInput: nothing that is installed knows how to write there, or a file is in the way.
        """
        if "://" not in str(address):
            path = Path(address).absolute()
            there = next(one for one in (path, *path.parents) if one.exists())
            if not there.is_dir():
                raise InvalidInput(
                    f"Statements cannot be put into {path}, because {there} is no folder; "
                    "set TICKETFLOW_STATEMENTS_PLACE to one."
                )
            return cls(path)
        from upath import UPath

        try:
            root = UPath(str(address))
            file_system = root.fs
        except (ImportError, ValueError) as error:
            raise InvalidInput(
                f"TICKETFLOW_STATEMENTS_PLACE={str(address)!r} cannot be written to: {str(error).splitlines()[0]}."
            ) from None
        return cls(Path(root.path)) if "file" in _protocols(file_system) else cls(root)

    def address(self, *parts: str) -> str:
        """Where the file of this name is found."""
        return str(self.root.joinpath(*parts))

    @contextmanager
    def writing(self, *parts: str) -> Iterator[BinaryIO]:
        """A file to write to that takes its name when the block ends; when the block raises, nothing has happened.

        In object storage it is sent as one whole object.
        """
        if not isinstance(self.root, Path):
            target = self.root.joinpath(*parts)
            with tempfile.NamedTemporaryFile(prefix="statement-") as draft:
                yield cast(BinaryIO, draft)
                draft.flush()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.fs.put_file(draft.name, target.path)
            return
        path = self.root.joinpath(*parts)
        drafts = self.root / _DRAFTS
        for folder in (drafts, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=drafts)
        try:
            with open(descriptor, "wb") as draft_file:  # noqa: PTH123 - a descriptor
                yield draft_file
                draft_file.flush()
                os.fchmod(descriptor, 0o640)
                os.fsync(descriptor)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def reading(self, *parts: str) -> BinaryIO:
        """The file of this name, open for reading.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.root.joinpath(*parts).open("rb")

    def remove_forgotten_drafts(self) -> None:
        """Remove what a run that was killed a day ago or longer has left half written."""
        if not isinstance(self.root, Path):
            return
        forgotten = time.time() - _DRAFT_FORGOTTEN_AFTER
        for draft in (self.root / _DRAFTS).glob("*"):
            # Another run may give its draft its name in this moment.
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < forgotten:
                    draft.unlink()


def _protocols(file_system: object) -> tuple[str, ...]:
    protocol = getattr(file_system, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
