"""Who is asking: the account and host that a process runs under, and the name of its start."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from functools import cache


def account() -> str:
    """`account@host`; the number of an account that has no name, as in containers."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


@cache
def owner_name() -> str:
    """Which process start this is: host, pid, and a word that no other start of a process has."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
