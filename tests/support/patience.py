"""A code location whose runs do not end by themselves."""

from __future__ import annotations

import time
from contextlib import suppress

import dagster as dg


@dg.op(pool="settlement")
def wait() -> None:
    """For a minute."""
    for _ in range(600):
        time.sleep(0.1)


@dg.op
def wait_whatever_comes() -> None:
    """For a minute, and for no signal less."""
    for _ in range(600):
        with suppress(BaseException):
            time.sleep(0.1)


@dg.job(executor_def=dg.in_process_executor)
def patient() -> None:
    """One that ends when it is asked to."""
    wait()


@dg.job(executor_def=dg.in_process_executor)
def stubborn() -> None:
    """One that has to be killed."""
    wait_whatever_comes()


defs = dg.Definitions(jobs=[patient, stubborn])
