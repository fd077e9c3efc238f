"""Questions that end in time, whatever becomes of those who are asked.

A driver waits in C for a server that has fallen silent, where no signal and no timeout of the server reaches it. So who
must answer in time asks in a thread of its own, and leaves that thread behind when the time is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Line = TypeVar("Line")


class NoAnswerError(RuntimeError):
    """The time was over before the question was answered."""


class Asked(Generic[Line]):
    """A question that is being asked from now on, in a thread of its own; its answer has any number of lines.

    Any number may read it. `began`: when, by the monotonic clock. A thread that is left behind ends with the process,
    or with its question.
    """

    def __init__(self, question: Callable[[], Iterable[Line]]) -> None:
        self.began = time.monotonic()
        self._question = question
        self._lines: list[Line] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether all lines are there, or it failed."""
        return self._ended.is_set()

    def wait(self, deadline: float) -> bool:
        """Wait until the end of the answer, or the `deadline` of the monotonic clock; returns whether it has ended."""
        return self._ended.wait(max(0.0, deadline - time.monotonic()))

    def until(self, deadline: float) -> Iterator[Line]:
        """The lines of the answer, those too that there were before it failed or the time was over.

        Raises:
            NoAnswerError: it has not ended at `deadline`, by the monotonic clock.
            Exception: what the question raised.
        """
        ended = self.wait(deadline)
        yield from self._lines.copy()
        if not ended:
            raise NoAnswerError
        if self._error is not None:
            raise self._error

    def _ask(self) -> None:
        try:
            for line in self._question():
                self._lines.append(line)
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is read
            self._error = error
        finally:
            self._ended.set()


def answer_within(seconds: float, question: Callable[[], Line]) -> Line:
    """The answer to `question`.

    Raises:
        NoAnswerError: there was none within `seconds`.
        Exception: what the question raised.
    """
    [answer] = Asked(lambda: [question()]).until(time.monotonic() + seconds)
    return answer
