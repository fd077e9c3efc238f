"""Sockets that wait no longer than the attempt they serve, however slowly the other side speaks.

The timeout of an ordinary socket begins anew with each byte; what is left here is asked before each wait.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_ends_at: ContextVar[float] = ContextVar("ends_at")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Every wait of this thread's sockets in the block ends `seconds` from now, or with the block around it."""
    now = time.monotonic()
    token = _ends_at.set(min(now + seconds, _ends_at.get(now + seconds)))
    try:
        yield
    finally:
        _ends_at.reset(token)


def left() -> float:
    """Seconds left to the block `within` which we are.

    Raises:
        TimeoutError: none.
    """
    seconds = _ends_at.get() - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time of this attempt is over")
    return seconds


class BoundedSocket(socket.socket):
    """A TCP socket, used inside `within`."""

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        """As ever, within what is left."""
        self.settimeout(left())
        return super().recv_into(buffer, nbytes or memoryview(buffer).nbytes, flags)

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """As ever, within what is left."""
        self.settimeout(left())
        return super().send(data, flags)

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        """As ever, within what is left."""
        self.settimeout(left())
        super().sendall(data, flags)


class _BoundedTlsSocket(BoundedSocket, ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        self.settimeout(left())
        super().do_handshake(block)


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Verifies certificates and host names by `ca_file`, or by what the system trusts; its sockets are bounded."""
    context = ssl.create_default_context(cafile=ca_file)
    context.sslsocket_class = _BoundedTlsSocket
    return context
