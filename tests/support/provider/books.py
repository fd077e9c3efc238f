"""The provider's books: one line of JSON per payment that it decided about, on disk before it answers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """A payment made (`confirmed`) or refused for good (`rejected`) at `at` (Unix time), and under which key."""

    at: float
    key: str
    fingerprint: str
    reference: str
    organization: str
    currency: str
    amount: int
    status: str
    provider_ref: str
    reason: str | None = None


def read(path: Path) -> list[Entry]:
    """All entries, the oldest first; a line that was being written when the provider died was never answered."""
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [Entry(**json.loads(line)) for line in lines]


class Books:
    """The file, open for one provider."""

    def __init__(self, path: Path) -> None:
        self.entries = read(path)
        whole = "".join(json.dumps(asdict(entry)) + "\n" for entry in self.entries)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(self._file, len(whole.encode()))
        os.lseek(self._file, 0, os.SEEK_END)

    def write(self, entry: Entry) -> None:
        os.write(self._file, (json.dumps(asdict(entry)) + "\n").encode())
        os.fsync(self._file)
        self.entries.append(entry)
