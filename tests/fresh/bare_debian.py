"""A Debian with next to nothing in it as podman's image, and what pip needs there to reach this machine's index."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fresh.commands import say

IMAGE = "localhost/ticketflow-fresh"
NOTHING_BUT = "python3,python3-venv,make"
# How this machine reaches its package index is handed on, whatever it is.
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


def bare_debian() -> str | None:
    """A Debian with next to nothing in it, made where it is missing."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    image = f"{IMAGE}:{release}"
    if subprocess.run(["podman", "image", "exists", image], check=False).returncode == 0:
        return image
    say(f"Container: making {image} with debootstrap")
    with tempfile.TemporaryDirectory(prefix="ticketflow-fresh-") as scratch:
        base = Path(scratch) / "debian"
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={NOTHING_BUT}",
            release,
            str(base),
            *_mirror(release),
        ]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            say(f"Container: not run; debootstrap says {done.stdout.strip().splitlines()[-1]}")
            return None
        with subprocess.Popen(["tar", "-C", base, "-c", "."], stdout=subprocess.PIPE) as packing:
            subprocess.run(["podman", "import", "-", image], stdin=packing.stdout, check=True, capture_output=True)
    return image


def _mirror(release: str) -> list[str]:
    """Where this machine has its own Debian from; debootstrap knows another."""
    listed = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(listed, check=False, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[1] for line in known if line.split()[0] == release][:1]


def pip_configuration() -> tuple[dict[str, str], list[str]]:
    """pip's configuration here as variables, and the files and folders that they name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True)
    variables = {name: os.environ[name] for name in NETWORK if name in os.environ}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        variables[f"PIP_{name.rpartition('.')[2].upper().replace('-', '_')}"] = str(ast.literal_eval(value))
    words = {word for value in variables.values() for word in value.split()}
    # The pages of an index name files that lie beside it.
    named = {str(Path(word.removeprefix("file://")).parent) if word.startswith("file://") else word for word in words}
    return variables, sorted(path for path in named if path.startswith("/") and path != "/" and Path(path).exists())
