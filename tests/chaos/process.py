"""Processes to be killed, frozen or raced, forked from one that has read the code already: a start costs milliseconds.

A process does some work of its module: it prepares, says that it is ready, and goes on when the test says so.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psutil

from tests.support.sessions import becomes

PATIENCE = 60.0
# What processes are forked from; it begins when the first of them is started.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([f"tests.chaos.{name}" for name in ("op_workers", "settlers", "relay_workers", "relays")])
_READY, _GO = "ready", "go"


class ForkedProcess:
    """A process that does `work(wait, *arguments)`; `wait()` in it says ready and returns when it may go."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = _FORKS.Pipe()
        self._process = _FORKS.Process(target=_work, args=(theirs, work, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        assert self._pipe.poll(PATIENCE), "the process did not start"
        assert self._pipe.recv() == _READY

    def go(self) -> None:
        self._pipe.send(_GO)

    def outcome(self) -> tuple[int, Any, str]:
        """Wait for the end: the exit status (negative: killed by that signal), what came of it, its complaint."""
        result, complaint = None, ""
        while True:
            assert self._pipe.poll(PATIENCE), "the process did not end"
            try:
                said = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                break
            if said != _READY:
                result, complaint = said
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None
        return self._process.exitcode, result, complaint

    def has_ended(self, seconds: float = 0) -> bool:
        """Whether it has, so many seconds from now."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def kill(self) -> None:
        """Leave nothing of it; whatever it was about to do is not done."""
        self._process.kill()
        self._process.join(PATIENCE)

    def wait_until_frozen(self) -> None:
        process = psutil.Process(self._process.pid)
        assert becomes(lambda: process.status() == psutil.STATUS_STOPPED, patience=PATIENCE)

    def freeze(self) -> None:
        psutil.Process(self._process.pid).send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        psutil.Process(self._process.pid).send_signal(signal.SIGCONT)


def _work(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    def wait() -> None:
        pipe.send(_READY)
        pipe.recv()

    try:
        pipe.send((work(wait, *arguments), ""))
    except Exception:
        pipe.send((None, traceback.format_exc()))
        raise
