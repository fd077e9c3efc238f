"""The images, built with buildah on the bare Debian; Postgres' stands in for the official one, out of reach here."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.fresh.bare_debian import bare_debian, pip_configuration

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/ticketflow:test"
POSTGRES = "localhost/ticketflow-postgres:test"
# Of everything in the image, so that two builds can be the same.
EPOCH = "1577836800"


def build(*options: str, image: str = IMAGE) -> str:
    """Build TicketFlow's image; returns its name. What pip needs here is given to the build, and in no layer."""
    variables, folders = pip_configuration()
    lines = [
        f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {value}"
        for name, value in variables.items()
        if name.startswith("PIP_")
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
        configuration.write("\n".join(["[global]", *lines]) + "\n")
        configuration.flush()
        _build(
            image,
            f"--file={ROOT / 'deploy' / 'container' / 'Dockerfile'}",
            f"--secret=id=pip,src={configuration.name}",
            f"--timestamp={EPOCH}",
            *(f"--volume={folder}:{folder}:ro" for folder in folders),
            *(f"--build-arg={name}={value}" for name, value in variables.items() if not name.startswith("PIP_")),
            *options,
            str(ROOT),
        )
    return image


def build_postgres() -> str:
    """Build the server's image; returns its name."""
    _build(POSTGRES, str(Path(__file__).with_name("postgres")))
    return POSTGRES


def _build(image: str, *options: str) -> None:
    base = bare_debian()
    assert base is not None, "there is no base to build on"
    subprocess.run(
        [
            "nice",
            "buildah",
            "bud",
            "--layers",
            "--network=host",
            f"--build-arg=BASE={base}",
            f"--tag={image}",
            *options,
        ],
        check=True,
        env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
