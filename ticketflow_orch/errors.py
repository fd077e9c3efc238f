"""What a caller did wrong, said in one sentence."""


class InputError(Exception):
    """Bad input or a missing precondition.

    The message is one clear sentence that names the offending value and the fix; nothing was written.
    Entry points print it without a traceback and exit non-zero.
    """


class InterruptedRunError(RuntimeError):
    """Somebody pressed Ctrl-C while a run was in hand: what it had committed stays, and running it again goes on."""
