"""What ends a command or a run with one sentence; a bug is an exception of any other kind, and keeps its traceback."""

from __future__ import annotations

from typing import ClassVar


class TicketflowError(Exception):
    """Nothing was written, or what was written stays right and the same call continues from there.

    The message is one clear sentence that names the offending value and the fix. Entry points print it without a
    traceback and exit with `exit_code`: 2 where the caller has to act first, 1 where the same call may succeed later.
    """

    exit_code: ClassVar[int]


class InvalidInput(TicketflowError):
    """What was given is wrong: an argument, a setting, a file, a row, or the name of something that does not exist."""

    exit_code = 2


class UnknownOrganization(InvalidInput):
    """No organization has this reference."""

    def __init__(self, external_ref: str) -> None:
        super().__init__(f"There is no organization {external_ref!r}; references are those of the application.")


class PreconditionFailed(TicketflowError):
    """What was given is right, and what is there does not allow it yet, such as a month that is not settled."""

    exit_code = 2


class Conflict(TicketflowError):
    """Another process or session is working on the same thing, or has changed it meanwhile."""

    exit_code = 1


class Unavailable(TicketflowError):
    """A database, server, disk or port does not answer or cannot be used."""

    exit_code = 1


class InterruptedRunError(RuntimeError):
    """Ctrl-C ended a run: what it had committed stays, and running it again continues from there."""
