"""A disk of its own, small enough to be filled."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SIZE = 2 << 30
_CHUNK = bytes(1 << 20)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk at `folder`, which must exist; it is gone when the block ends."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=755", "tmpfs", folder], check=True, capture_output=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def can_mount() -> bool:
    """Whether this account may have one here."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder)):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


def fill(folder: Path) -> None:
    """Leave no byte free on the disk of `folder`."""
    with (folder / "filler").open("ab", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(_CHUNK)


def clear(folder: Path) -> None:
    """Give that room back."""
    (folder / "filler").unlink()
