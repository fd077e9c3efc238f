"""A network of a composition's own, with loopback and nothing else, and doors from this host's loopback into it."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.ports import free_port

_NEWNET = 0x40000000


@contextmanager
def own_network(name: str) -> Iterator[Path]:
    """A network namespace for as long as the block lasts; all services of a composition share it."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Path("/run/netns") / name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def door(network: Path, inside: int) -> Iterator[int]:
    """A port on this host's 127.0.0.1 that leads to the port `inside` of 127.0.0.1 in the network."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        threading.Thread(target=_lead, args=(server, network, inside), daemon=True).start()
        yield port
        server.shutdown(socket.SHUT_RDWR)


def _lead(server: socket.socket, network: Path, inside: int) -> None:
    # A thread may be in another network than its process; connections belong to where they were opened.
    there = os.open(network, os.O_RDONLY)
    entered = ctypes.CDLL(None, use_errno=True).setns(there, _NEWNET)
    os.close(there)
    assert entered == 0, os.strerror(ctypes.get_errno())
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        try:
            far = socket.create_connection(("127.0.0.1", inside), timeout=10)
        except OSError:
            near.close()
            continue
        far.settimeout(None)
        threading.Thread(target=_join, args=(near, far), daemon=True).start()


def _join(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
