"""How far long work is: a line in the run's log now and then, not one a chunk."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from assets import progress
from ticketflow_orch.settlement import Drained


class Stopwatch:
    """Stands in for `time`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.seconds))


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    return Stopwatch(monkeypatch)


def test_there_are_ten_seconds_before_the_first_line_and_between_two(stopwatch: Stopwatch) -> None:
    lines: list[str] = []
    line = progress.paced(lines.append)
    for second in range(30):
        stopwatch.seconds = 1000.0 + second
        line(f"second {second}")
    assert lines == ["second 10", "second 20"]


def test_a_settlement_says_how_much_is_done_how_fast_and_how_long_it_will_take(stopwatch: Stopwatch) -> None:
    lines: list[str] = []
    listen = progress.settlement_progress(lines.append)
    stopwatch.seconds += 20
    listen(Drained(done=0, total=100))
    assert lines == []
    listen(Drained(done=40, total=100))
    assert lines == ["40/100 chunks, 2.0 a second, about 30 s to go"]
