"""What `ticketflow doctor` and `ticketflow health` find, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a thing is: `STOPPED` is no fault of a laptop, yet one of a deployment."""

    OK = "ok"
    STOPPED = "stopped"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `fix` says what to do unless it is ok."""

    subject: str
    state: State
    detail: str
    fix: str = ""
