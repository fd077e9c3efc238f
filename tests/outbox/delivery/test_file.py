"""The file: one whole line an event, whatever else happens to the file and however many write."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.outbox.delivery.messages import mail, message, no_commit
from ticketflow_orch.outbox.delivery import FencedError, Verdict
from ticketflow_orch.outbox.delivery.file import FileTransport

ROOT = Path(__file__).parents[3]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "outbox.jsonl"


def test_a_line_says_what_would_be_sent_about_what(path: Path) -> None:
    sent = message(aggregate_id="r-7", attempt=2)
    transport = FileTransport(path)

    assert transport.send(sent, no_commit).verdict is Verdict.DELIVERED

    transport.close()
    assert lines(path) == [
        {
            "event_id": str(sent.event_id),
            "event_type": "ReservationExpired",
            "occurred_at": "2026-03-01T09:00:00+00:00",
            "aggregate": {"type": "reservation", "id": "r-7"},
            "attempt": 2,
            "data": {"reservation": "r-7", "buyer": "Zoë"},
        }
    ]


def test_mail_is_readable(path: Path) -> None:
    transport = FileTransport(path)
    transport.send(message(mail(text="¡Mañana!\nA las nueve.\n")), no_commit)
    transport.close()
    assert lines(path)[0]["mail"] == {
        "from": "TicketFlow <tickets@ticketflow.example>",
        "to": "ana@example.org",
        "subject": "Mañana: «Concert»",
        "message-id": "<1@ticketflow.example>",
        "text": "¡Mañana!\nA las nueve.\n",
    }
    assert "¡Mañana!" in path.read_text("utf-8")


def test_a_rendered_body_that_is_no_envelope_is_shown_as_it_is(path: Path) -> None:
    transport = FileTransport(path)
    for body in (b'{"amount": 5}', b"[1, 2]"):
        transport.send(message(body), no_commit)
    transport.close()
    assert [line["data"] for line in lines(path)] == [{"amount": 5}, [1, 2]]


WRITER = """
import sys
from pathlib import Path
from tests.outbox.delivery.messages import message, no_commit
from ticketflow_orch.outbox.delivery.file import FileTransport
transport = FileTransport(Path(sys.argv[1]))
for number in range(100):
    transport.send(message(aggregate_id=f"{sys.argv[2]}-{number}-" + "x" * 9000), no_commit)
transport.close()
"""


def test_lines_of_several_processes_and_threads_never_mix(path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=ROOT, env=os.environ) for name in "ab"
    ]
    transport = FileTransport(path)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: transport.send(message(aggregate_id=f"t-{number}"), no_commit), range(100)))
    transport.close()
    assert [process.wait(30) for process in processes] == [0, 0]

    assert len({str(line["aggregate"]) for line in lines(path)}) == 300


class Flush:
    """Stands in for `os.fsync`: the first waits for `go`, the one numbered `fails` meets a bad disk."""

    def __init__(self, fails: int = 0) -> None:
        self.count = 0
        self.begun, self.go = threading.Event(), threading.Event()
        self._fails = fails

    def __call__(self, file: int) -> None:
        self.count += 1
        failing = self.count == self._fails
        self.begun.set()
        assert self.go.wait(60)
        if failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def send_while_the_first_is_flushed(path: Path, flush: Flush) -> list[Verdict]:
    """Send one line, and eleven more from threads of their own before its flush ends."""
    transport = FileTransport(path)
    with ThreadPoolExecutor(12) as threads:
        outcomes = [threads.submit(transport.send, message(), no_commit)]
        assert flush.begun.wait(60)
        outcomes += [threads.submit(transport.send, message(), no_commit) for _ in range(11)]
        while path.read_bytes().count(b"\n") < 12:
            time.sleep(0.001)
        assert not any(outcome.done() for outcome in outcomes)
        flush.go.set()
        return [outcome.result(60).verdict for outcome in outcomes]


def test_threads_that_write_at_once_share_one_flush(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", flush := Flush())
    assert send_while_the_first_is_flushed(path, flush) == [Verdict.DELIVERED] * 12
    # The first, one for all others, and one for the last line where it stood in the file but was not counted yet.
    assert flush.count in (2, 3)


def test_a_flush_that_fails_fails_for_all_who_share_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", flush := Flush(fails=2))
    first, *others = send_while_the_first_is_flushed(path, flush)
    assert first is Verdict.DELIVERED
    assert others.count(Verdict.UNKNOWN) == 11 - (flush.count - 2)


def test_a_file_that_was_moved_away_is_begun_anew(path: Path) -> None:
    transport = FileTransport(path)
    transport.send(message(aggregate_id="before"), no_commit)
    path.rename(path.with_suffix(".1"))
    transport.send(message(aggregate_id="after"), no_commit)
    transport.close()
    assert [line["aggregate"] for line in lines(path)] == [{"type": "reservation", "id": "after"}]


def test_half_a_line_that_a_power_failure_left_spoils_no_other(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"event_id": "ha')
    transport = FileTransport(path)
    transport.send(message(), no_commit)
    transport.close()
    half, whole = path.read_text("utf-8").splitlines()
    assert half == '{"event_id": "ha'
    assert json.loads(whole)["event_type"] == "ReservationExpired"


def test_a_full_disk_is_a_refusal_and_leaves_the_next_line_whole(path: Path) -> None:
    transport = FileTransport(path)
    transport.send(message(), no_commit)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
        outcome = transport.send(message(), no_commit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert outcome.verdict is Verdict.UNREACHED
    assert transport.send(message(aggregate_id="r-9"), no_commit).verdict is Verdict.DELIVERED
    transport.close()
    assert json.loads(path.read_text("utf-8").splitlines()[-1])["aggregate"]["id"] == "r-9"


def test_a_folder_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = FileTransport(tmp_path / "file" / "outbox.jsonl").send(message(), no_commit)
    assert outcome.verdict is Verdict.UNREACHED
    assert "outbox.jsonl cannot be written: " in str(outcome.error)


def test_nothing_is_written_when_the_lease_is_over(path: Path) -> None:
    def fenced() -> None:
        raise FencedError

    with pytest.raises(FencedError):
        FileTransport(path).send(message(), fenced)
    assert not path.exists()


def test_a_file_cannot_be_asked(path: Path) -> None:
    assert FileTransport(path).look_up(message()).verdict is Verdict.UNKNOWN
