"""The transport to a file: one JSON line an event, to look at what would be sent, or for another program to take."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from ticketflow_orch.outbox.delivery import Commit, Message, Outcome, Verdict


class FileTransport:
    """Appends to the file at `path`, which may be moved away at any time and is then begun anew.

    A line is one write, so lines of several threads and processes never mix. An event is DELIVERED when its line is on
    the disk; threads that write at once share one flush.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._written = 0
        self._flushed = 0
        self._doubtful = 0
        self._writing = threading.Lock()
        self._flushing = threading.Lock()

    def send(self, message: Message, commit: Commit) -> Outcome:
        """Append the line of `message`, then see to it that a crash cannot lose it."""
        line = json.dumps(_line(message), ensure_ascii=False).encode() + b"\n"
        commit()
        try:
            number, file = self._append(line)
        except OSError as error:
            return Outcome(Verdict.UNREACHED, f"{self._path} cannot be written: {error.strerror}.")
        try:
            self._flush(number, file)
        except OSError as error:
            return Outcome(Verdict.UNKNOWN, f"{self._path} cannot be flushed: {error.strerror}.")
        return Outcome(Verdict.DELIVERED)

    def look_up(self, message: Message) -> Outcome:
        """UNKNOWN: the program that reads the file may have moved it."""
        return Outcome(Verdict.UNKNOWN, f"A file cannot be asked for event {message.event_id}.")

    def close(self) -> None:
        """Close the file; a further event opens it again."""
        with self._writing, self._flushing:
            self._leave()

    def _append(self, line: bytes) -> tuple[int, int]:
        with self._writing:
            self._open()
            written = os.write(self._file, line)
            if written < len(line):
                # The disk is full. Opened again, the file begins a line of its own after the part that was taken.
                with self._flushing:
                    self._leave()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._written += 1
            return self._written, self._file

    def _flush(self, number: int, file: int) -> None:
        with self._flushing:
            if number <= self._doubtful:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self._flushed < number:
                self._sync(file)

    def _sync(self, file: int) -> None:
        # Whatever is written by now goes to the disk with us, and its writers need not wait for their own.
        covered = self._written
        try:
            os.fsync(file)
        except OSError:
            # The kernel reports a page that it lost once only: the next flush would succeed.
            self._doubtful = covered
            raise
        self._flushed = covered

    def _open(self) -> None:
        if self._file >= 0 and self._is_in_place():
            return
        with self._flushing:
            self._leave()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            size = os.fstat(self._file).st_size
            # A power failure or a full disk may have left half a line.
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def _leave(self) -> None:
        if self._file >= 0:
            try:
                self._sync(self._file)
            finally:
                os.close(self._file)
                self._file = -1


def _line(message: Message) -> Mapping[str, Any]:
    head = {
        "event_id": str(message.event_id),
        "event_type": message.event_type,
        "occurred_at": message.occurred_at.isoformat(),
        "aggregate": {"type": message.aggregate_type, "id": message.aggregate_id},
        "attempt": message.attempt,
    }
    try:
        content = json.loads(message.body)
    except ValueError:
        return {**head, "mail": _readable(message_from_bytes(message.body, policy=policy.SMTP))}
    return {**head, "data": content["data"] if isinstance(content, dict) and "data" in content else content}


def _readable(mail: EmailMessage) -> Mapping[str, str]:
    text = mail.get_body(("plain", "html"))
    headers = {name.lower(): str(mail[name]) for name in ("From", "To", "Subject", "Message-ID") if name in mail}
    return {**headers, "text": "" if text is None else str(text.get_content()).replace("\r\n", "\n")}
