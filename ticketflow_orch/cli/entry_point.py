"""What runs around every command: its arguments are looked over, and its errors become a sentence and an exit code."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence

import typer

from ticketflow_orch.cli.commands import command
from ticketflow_orch.cli.exit_codes import INTERRUPTED
from ticketflow_orch.errors import InterruptedRunError, InvalidInput, PreconditionFailed, TicketflowError, Unavailable
from ticketflow_orch.formatting.text import is_text

# What a disk refuses is no fault of the program, whichever file it is about.
_FULL = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room for this account on that disk",
}
_CLOSED = {
    errno.EACCES: "let this account in there, or set TICKETFLOW_HOME to a folder of its own",
    errno.EPERM: "let this account in there, or set TICKETFLOW_HOME to a folder of its own",
    errno.EROFS: "set TICKETFLOW_HOME to a folder that can be written to",
    errno.EEXIST: "set TICKETFLOW_HOME to a folder",
    errno.ENOTDIR: "set TICKETFLOW_HOME to a folder",
}
# An option, and nothing after its equals sign.
_NOTHING_GIVEN = re.compile(r"--[a-z-]+=\s*")


def main() -> None:
    """The console script. What ends a command is one line on stderr, and its exit code that of the kind of error."""
    try:
        _refuse_unreadable(sys.argv[1:])
        command()()
    except InterruptedRunError:
        again = " ".join(["ticketflow", *sys.argv[1:]])
        typer.echo(
            f"Interrupted. What is done stays, and nothing is done twice; `{again}` continues from there.", err=True
        )
        sys.exit(INTERRUPTED)
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        # Further lines are lists that the command has shown as a table.
        typer.echo(f"error: {str(known).splitlines()[0]}", err=True)
        sys.exit(known.exit_code)


def _known(error: Exception) -> TicketflowError | None:
    """`error` as one of those that end a command with a sentence; None for a bug, which keeps its traceback."""
    if isinstance(error, TicketflowError):
        return error
    if isinstance(error, OSError):
        kind = Unavailable if error.errno in _FULL else InvalidInput
        fix = (_FULL | _CLOSED).get(error.errno or 0)
        return None if fix is None else kind(f"{error.filename or 'a file'}: {error.strerror}; {fix}.")
    from ticketflow_orch.db.errors import database_fault

    fault = database_fault(error)
    if fault is None:
        return None
    return PreconditionFailed(fault.sentence) if fault.is_refusal else Unavailable(fault.sentence)


def _refuse_unreadable(arguments: Sequence[str]) -> None:
    """Raise InvalidInput for what names nothing: bytes of another encoding, or nothing at all."""
    for argument in arguments:
        if not argument.strip() or _NOTHING_GIVEN.fullmatch(argument):
            raise InvalidInput(
                f"The argument {argument!r} says nothing, most likely for a variable of the shell that is not set; "
                "fill it in, or leave it out."
            )
        if not is_text(argument):
            raise InvalidInput(f"The argument {argument!a} is not UTF-8; write it in that encoding.")
