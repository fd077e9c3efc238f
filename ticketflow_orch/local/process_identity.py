"""Which process, on which machine, since when: so that another process can say later whether it still lives.

A process id alone says nothing: it is given again, and other hosts and containers count from one as well.
"""

from __future__ import annotations

import json
import os
import platform
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self

import psutil


class Life(StrEnum):
    """What can be said from here about a process."""

    LIVES = "lives"
    GONE = "gone"
    OUT_OF_SIGHT = "out of sight"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process: `host` is a name for people, the rest is compared.

    `machine`: the machine's own id, empty where it has none. `boot`: the id of its last start. `namespace`: where its
    process ids count, which is another in each container. `started`: when the process did, in the kernel's own count.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """The identity of the living process `pid` of this machine.

        Raises:
            ProcessLookupError: it does not live.
        """
        started = _started(pid)
        if started is None:
            raise ProcessLookupError(f"process {pid} does not live")
        machine, boot, namespace = _here()
        return cls(platform.node(), machine, boot, namespace, pid, started)

    @classmethod
    def parse(cls, written: str) -> Self | None:
        """The identity that `to_json` wrote; None where it is anything else."""
        try:
            return cls(**json.loads(written))
        except (ValueError, TypeError):
            return None

    def to_json(self) -> str:
        """The identity as text."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def life(self) -> Life:
        """Whether it still lives, as far as that can be said on this machine."""
        machine, boot, _ = _here()
        if self.is_here:
            try:
                return Life.LIVES if _started(self.pid) == self.started else Life.GONE
            except PermissionError:
                return Life.OUT_OF_SIGHT
        was_restarted = boot and self.boot and boot != self.boot
        if machine and (machine, platform.node()) == (self.machine, self.host) and was_restarted:
            return Life.GONE
        return Life.OUT_OF_SIGHT

    @property
    def is_here(self) -> bool:
        """Whether its process id is one of those that this process sees."""
        _, boot, namespace = _here()
        return _is_one_place((self.boot, self.namespace, self.host), (boot, namespace, platform.node()))

    def shares_host_with(self, other: ProcessIdentity) -> bool:
        """Whether a process that can judge `other` by its process id can judge this one as well."""
        return _is_one_place((self.boot, self.namespace, self.host), (other.boot, other.namespace, other.host))

    def signal(self, number: signal.Signals) -> bool:
        """Send it a signal, with all of the group that it leads; returns False where it does not live here."""
        if not self.is_here or self.life != Life.LIVES:
            return False
        with suppress(ProcessLookupError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
            return True
        return False


def _is_one_place(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    # A host's name may change while it runs, so it counts only where nothing better is known.
    return one[:2] == other[:2] and (bool(one[0]) or one[2] == other[2])


@cache
def _here() -> tuple[str, str, str]:
    """The machine, its boot, and the namespace of process ids that this process is in; empty where there is none."""
    namespace = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return _read("/etc/machine-id"), _read("/proc/sys/kernel/random/boot_id"), namespace


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _started(pid: int) -> str | None:
    """When the process `pid` started, in ticks since the boot; None where there is none, or only its zombie.

    Not as psutil has it on Linux: what it calculates from the boot's time moves with the clock.

    Raises:
        PermissionError: it is there, and belongs to somebody whose processes are hidden.
    """
    try:
        if not Path("/proc/self/stat").exists():
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
        # The name may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            raise PermissionError(f"process {pid} is hidden") from None
        return None
