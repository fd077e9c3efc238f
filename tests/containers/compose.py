"""deploy/container/compose.yaml as commands of podman, so that what is tested is the file; what is unknown is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / "deploy" / "container" / "compose.yaml"
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
# What says nothing to podman: who waits for whom is the composition's, ports lie in its own network, and there is no
# systemd that would ask after health by the clock.
_ELSEWHERE = {"depends_on", "ports", "image", "command"}


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
        match key:
            case "restart" | "stop_signal" | "shm_size":
                said.append(f"--{key.replace('_', '-')}={value}")
            case "mem_limit":
                said.append(f"--memory={value}")
            case "stop_grace_period":
                said.append(f"--stop-timeout={seconds(value)}")
            case "init" | "read_only":
                said += [f"--{key.replace('_', '-')}"] * bool(value)
            case "tmpfs" | "cap_drop" | "cap_add":
                said += [f"--{key.replace('_', '-')}={each}" for each in value]
            case "security_opt":
                said += [f"--security-opt={each.removesuffix(':true')}" for each in value]
            case "environment":
                said += [f"--env={variable}={each}" for variable, each in value.items()]
            case "volumes":
                said += [f"--volume={prefix}-{each}" for each in value]
            case "secrets":
                files = {each: document["secrets"][each]["file"] for each in value}
                said += [f"--volume={file}:/run/secrets/{each}:ro" for each, file in files.items()]
            case "logging":
                # Podman's name for it; it keeps one file, not five.
                assert value["driver"] == "json-file"
                said += ["--log-driver=k8s-file", f"--log-opt=max-size={value['options']['max-size']}"]
            case "healthcheck":
                said += _health(value)
            case _ if key not in _ELSEWHERE:
                raise UnknownKeyError(f"{name}: {key}")
    return said


def _health(check: Mapping[str, Any]) -> list[str]:
    words = check["test"]
    assert words[0] == "CMD"
    return [f"--health-cmd={json.dumps(words)}", "--health-interval=disable", f"--health-timeout={check['timeout']}"]
