"""How long work says in the log of its run how far it is, and how often."""

import time
from collections.abc import Callable

from ticketflow_orch.settlement import Drained

SECONDS_BETWEEN_LINES = 10


def paced(log: Callable[[str], None]) -> Callable[[str], None]:
    """Like `log`, without the lines that come within ten seconds of the beginning or of the line before."""
    last = time.monotonic()

    def line(text: str) -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last >= SECONDS_BETWEEN_LINES:
            last = moment
            log(text)

    return line


def settlement_progress(log: Callable[[str], None]) -> Callable[[Drained], None]:
    """A listener that logs how far a settlement is: done/total, rate, time left."""
    started = time.monotonic()
    line = paced(log)

    def listen(state: Drained) -> None:
        if state.done:
            rate = state.done / (time.monotonic() - started)
            left = (state.total - state.done) / rate
            line(f"{state.done}/{state.total} chunks, {rate:.1f} a second, about {left:.0f} s to go")

    return listen
