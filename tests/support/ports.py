"""Ports for servers that are given one to listen on."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# pytest-randomly seeds the dice of all workers alike.
_dice = random.SystemRandom()


def free_port() -> int:
    """A port nobody listens at, below those that the system gives out by itself.

    One of those might be the near end of anybody's connection by the time that it is listened at.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := _dice.randrange(20_000, 32_000)))
            return port
