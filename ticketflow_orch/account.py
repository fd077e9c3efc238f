"""Who is at work: the account and host that a process runs under."""

import getpass
import os
import socket


def account() -> str:
    """`account@host`; the number of an account that has no name, as in containers."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
