"""What `make test-fresh` does: the matrix with each Python that is found here, then a bare Debian in a container.

It needs root, debootstrap and podman for the container. RUNTIME names podman's runtime where its own does not do, and
PYTHONS the versions of the matrix; ARGS goes to the container's `make test`. The bare Debian is kept as podman's image
`localhost/ticketflow-fresh`; `podman rmi` removes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.fresh.bare_debian import bare_debian, pip_configuration
from tests.fresh.commands import say, unpack
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
MATRIX = (
    "tests/local/test_fresh_machine.py",
    "tests/local/test_hidden_processes.py",
    "tests/local/test_data_places.py",
    "tests/local/test_postgres.py",
)
COMMANDS = Path(__file__).with_name("commands.py")
# What a removed project leaves below /var/lib/ticketflow.
REMOVE = """
from pathlib import Path
from ticketflow_orch.local.postgres import EmbeddedServer
EmbeddedServer(Path(".ticketflow")).remove()
"""


def main() -> int:
    """Returns 0 when all that can be had here was as it must be, and all of it can."""
    with tempfile.TemporaryDirectory(prefix="ticketflow-fresh-") as scratch:
        archive = Path(scratch) / "project.tar"
        _pack(archive)
        green = [_matrix(version, archive) for version in os.environ.get("PYTHONS", " ".join(PYTHONS)).split()]
        green.append(_container(archive))
    return 0 if all(green) else 1


def _pack(archive: Path) -> None:
    """What is in the project as it stands, without what was installed or made here."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    with tarfile.open(archive, "w") as files:
        for name in filter(None, map(os.fsdecode, names)):
            if (ROOT / name).exists():
                files.add(ROOT / name, name)
    archive.chmod(0o644)


def _matrix(version: str, archive: Path) -> bool:
    """Install the project for one Python in a folder that is private and has a space; demo and matrix there."""
    python = _python(version)
    if python is None:
        say(f"Python {version}: not found here, nothing asked of it")
        return True
    say(f"Python {version}: {python}")
    with tempfile.TemporaryDirectory(prefix="ticketflow-fresh-") as scratch:
        project = Path(scratch) / "mi carpeta añeja" / "ticketflow"
        unpack(archive, project)
        try:
            return all(
                _succeeds(command, project)
                for command in (
                    ["make", "--silent", "install", f"PYTHON={python}"],
                    [sys.executable, COMMANDS, "demo", project],
                    [project / ".venv/bin/python", "-m", "pytest", "-q", "-rs", *MATRIX],
                )
            )
        finally:
            subprocess.run([project / ".venv/bin/python", "-c", REMOVE], cwd=project, check=False)


def _succeeds(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] = os.environ) -> bool:
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode == 0


def _python(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's."""
    found = shutil.which(f"python{version}")
    # One of pyenv's is on the path also where pyenv says no to it.
    if found is not None and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0:
        return found
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    installed = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    return str(installed[-1]) if installed else None


def _container(archive: Path) -> bool:
    """The README's commands and the whole suite in a bare Debian, with podman's default capabilities and no init."""
    missing = [program for program in ("debootstrap", "podman") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        say(f"Container: not run; it needs root and {', '.join(missing or ['debootstrap', 'podman'])}")
        return False
    image = bare_debian()
    if image is None:
        return False
    runtime = os.environ.get("RUNTIME")
    variables, folders = pip_configuration()
    command = [
        "podman", *(["--runtime", runtime] if runtime else []), "run", "--rm", "--network=host",
        # The suite keeps its clusters in memory where there is any: half of it, as on a host. Podman gives 64 MB.
        f"--shm-size={psutil.virtual_memory().total // 2}",
        f"--volume={archive}:/fresh/project.tar:ro", f"--volume={COMMANDS}:/fresh/commands.py:ro",
        *(f"--volume={folder}:{folder}:ro" for folder in folders),
        *(f"--env={name}={value}" for name, value in variables.items()), f"--env=ARGS={os.environ.get('ARGS', '')}",
        image, "python3", "/fresh/commands.py", "container", "/fresh/project.tar", str(free_port()),
    ]  # fmt: skip
    say(f"Container: {image}")
    return _succeeds(command, ROOT)


if __name__ == "__main__":
    sys.exit(main())
