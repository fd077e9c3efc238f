"""The logs of processes that run for years are begun anew before they fill the disk."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ticketflow_orch.local.processes import Children

SAYING = "import time\nfor number in range(10**6):\n    print(number, flush=True)\n    time.sleep(0.001)"


def test_a_log_that_grew_too_large_is_begun_anew_and_what_came_before_is_kept_once(tmp_path: Path) -> None:
    log, previous = tmp_path / "saying.log", tmp_path / "saying.previous.log"
    with Path(os.devnull).open() as kept, Children(tmp_path, dict(os.environ), grace=1) as children:
        children.start("saying", [sys.executable, "-c", SAYING], folder=tmp_path, keep_open=kept.fileno())
        deadline = time.monotonic() + 20
        for _ in range(2):
            while log.stat().st_size < 200:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            children.keep_logs_small(most=10_000_000)
            assert log.stat().st_size >= 200
            children.keep_logs_small(most=199)
            assert log.stat().st_size < 200
    # The process goes on writing at the end of the file, not where it was.
    assert b"\0" not in log.read_bytes() + previous.read_bytes()
    assert previous.read_text().splitlines()[1].isdigit()


def test_a_log_that_is_not_there_is_no_reason_to_fail(tmp_path: Path) -> None:
    with Path(os.devnull).open() as kept, Children(tmp_path, dict(os.environ), grace=1) as children:
        child = children.start("quiet", [sys.executable, "-c", ""], folder=tmp_path, keep_open=kept.fileno())
        child.log.unlink()
        children.keep_logs_small()
