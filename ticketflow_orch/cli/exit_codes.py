"""What the command `ticketflow` exits with; `errors.py` says which error ends in which."""

from __future__ import annotations

from ticketflow_orch.errors import InvalidInput, Unavailable

DONE = 0
# The work failed or found something wrong, or the same command may succeed later.
FAILED = Unavailable.exit_code
# What was given is wrong, or what is there does not allow it yet: the caller has to act first.
REFUSED = InvalidInput.exit_code
# As shells have it for Ctrl-C.
INTERRUPTED = 130
