"""A server that falls silent: between it and its client packets are dropped, and nobody says that they are."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SO_ATTACH_FILTER = 26
_RETURN = 0x06  # BPF_RET | BPF_K: keep so many bytes of a packet


class Wire:
    """A port on 127.0.0.1 whose connections lead to a server's socket, while the wire is not cut."""

    def __init__(self, server: Path) -> None:
        self._server = str(server)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._near: list[socket.socket] = []
        self._far: list[socket.socket] = []
        self._whole = threading.Event()
        self._whole.set()
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop every packet of clients from now on, unacknowledged, their keepalives included, and send none."""
        self._whole.clear()
        for near in self._near:
            if near.fileno() >= 0:
                _drop_packets(near)

    def restore(self) -> None:
        """Let new connections through. Those that were cut stay so, and their clients do not hear of it."""
        self._whole = threading.Event()
        self._whole.set()

    def close(self) -> None:
        """Give everything back."""
        for one in (self._listening, *self._near, *self._far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._near.append(near)
                if not self._whole.is_set():
                    _drop_packets(near)
                    continue
                far = socket.socket(socket.AF_UNIX)
                self._far.append(far)
                try:
                    far.connect(self._server)
                except OSError:
                    # As where no server listens.
                    near.close()
                    far.close()
                    continue
                threading.Thread(target=_connect, args=(near, far, self._whole), daemon=True).start()


def _connect(near: socket.socket, far: socket.socket, whole: threading.Event) -> None:
    """Forward both ways until both have ended, and give both ends back: an outage takes hundreds of connections."""
    back = threading.Thread(target=_forward, args=(far, near, whole), daemon=True)
    with near, far:
        back.start()
        _forward(near, far, whole)
        back.join()


def _forward(source: socket.socket, target: socket.socket, whole: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if whole.is_set():
                target.sendall(data)
    if whole.is_set():
        # Also where the one end was reset: the other would wait for it for ever.
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def can_cut() -> bool:
    """Whether a process may drop packets of its own here: Linux lets it, some containers do not."""
    if sys.platform != "linux":
        return False
    with socket.socket() as probe:
        try:
            _drop_packets(probe)
        except PermissionError:
            return False
    return True


def _drop_packets(end: socket.socket) -> None:
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


@contextmanager
def wire(server: Path) -> Iterator[Wire]:
    """A wire to the server that listens at the socket `server`."""
    one = Wire(server)
    try:
        yield one
    finally:
        one.close()
