"""deploy/container/compose.yaml as commands of podman: what is tested is the file, and what is unknown is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / "deploy" / "container" / "compose.yaml"
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
# What says nothing to podman: who waits for whom and who is healthy is the composition's to ask, and ports lie in its
# own network.
_ELSEWHERE = {"depends_on", "ports", "image", "command", "healthcheck"}


class UnknownKeyError(Exception):
    """The file says something that is not translated."""


def read(variables: Mapping[str, str]) -> dict[str, Any]:
    """What the file says with these variables."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if kind == "?" and not variables.get(name):
            raise KeyError(rest)
        return variables.get(name) or (rest if kind == "-" else "")

    document: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(value, FILE.read_text("utf-8")))
    return document


def seconds(length: str) -> int:
    """A length of time as the file has it, such as 30s or 2m."""
    return int(length[:-1]) * {"s": 1, "m": 60}[length[-1]]


def options(document: Mapping[str, Any], name: str, prefix: str) -> list[str]:
    """The options of `podman run` for a service; volumes are named with `prefix`.

    Raises:
        UnknownKeyError: the service says something that this does not know.
    """
    said: list[str] = []
    for key, value in document["services"][name].items():
        flag = f"--{key.replace('_', '-')}"
        if key == "volumes":
            # One with a path is a file of this host.
            said += [f"--volume={each if each.startswith('/') else f'{prefix}-{each}'}" for each in value]
        elif key == "secrets":
            files = {each: document["secrets"][each]["file"] for each in value}
            said += [f"--volume={file}:/run/secrets/{each}:ro" for each, file in files.items()]
        elif key in _TRANSLATED:
            said += _TRANSLATED[key](flag, value)
        elif key not in _ELSEWHERE:
            raise UnknownKeyError(f"{name}: {key}")
    return said


def _logging(_: str, said: Mapping[str, Any]) -> list[str]:
    # Podman's name for it; it keeps one file, not five.
    assert said["driver"] == "json-file"
    return ["--log-driver=k8s-file", f"--log-opt=max-size={said['options']['max-size']}"]


def _as_it_is(flag: str, value: str) -> list[str]:
    return [f"{flag}={value}"]


def _switch(flag: str, value: bool) -> list[str]:
    return [flag] * value


def _each(flag: str, values: list[str]) -> list[str]:
    return [f"{flag}={value.removesuffix(':true')}" for value in values]


_TRANSLATED: Mapping[str, Callable[[str, Any], list[str]]] = {
    **dict.fromkeys(("restart", "stop_signal", "shm_size"), _as_it_is),
    **dict.fromkeys(("init", "read_only"), _switch),
    **dict.fromkeys(("tmpfs", "cap_drop", "cap_add", "security_opt"), _each),
    "mem_limit": lambda _, value: [f"--memory={value}"],
    "stop_grace_period": lambda _, value: [f"--stop-timeout={seconds(value)}"],
    "environment": lambda _, value: [f"--env={name}={each}" for name, each in value.items()],
    "logging": _logging,
}
