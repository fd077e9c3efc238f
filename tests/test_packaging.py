"""A wheel built from the repository is all that another folder needs, even one with an `assets` of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"ticketflow_orch", "resources", "assets", "schedules", "sensors"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with the locked build backend and without the network."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)], ROOT)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has our wheel, and of this environment the dependencies only."""
    folder = tmp_path_factory.mktemp("env")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    run([*install, str(wheel)], folder)
    [packages] = folder.glob("lib/*/site-packages")
    # A folder named in a .pth file is searched, but the .pth files in it are not read: not the one of our editable
    # installation, that is.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run(command: list[str], folder: Path, **variables: str) -> str:
    bare = {
        name: value for name, value in os.environ.items() if not name.startswith(("TICKETFLOW_", "DAGSTER_", "PYTHON"))
    }
    result = subprocess.run(
        command, cwd=folder, env=bare | variables, check=False, capture_output=True, text=True, timeout=90
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_carries_the_five_packages_and_what_is_not_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    ours = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    assert ours <= set(names)
    assert {"ticketflow_orch/dagster_host/dagster.yaml", "ticketflow_orch/migrations/env.py"} <= set(names)


def test_the_command_runs_from_the_wheel_alone(python: Path, tmp_path: Path) -> None:
    assert "Usage: ticketflow" in run([str(python.with_name("ticketflow")), "--help"], tmp_path)
    where = run(
        [str(python), "-c", "import assets, ticketflow_orch as t; print(t.__file__, assets.__file__)"], python.parent
    )
    assert all(Path(path).is_relative_to(python.parents[1]) for path in where.split())


def test_the_code_location_loads_in_a_folder_with_an_assets_package_of_its_own(python: Path, tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "__init__.py").write_text("raise ImportError('not the assets you are looking for')\n")
    (tmp_path / "home").mkdir()

    listed = run(
        [str(python), "-m", "dagster", "asset", "list", "--module-name", "ticketflow_orch.definitions"],
        tmp_path,
        DAGSTER_HOME=str(tmp_path / "home"),
        TICKETFLOW_DATABASE_URL="postgresql://nobody@nowhere/nothing",
    )

    assert "monthly_settlement" in listed.split()


def test_a_server_is_prepared_from_the_wheel_alone(python: Path, scratch: Path) -> None:
    """The migrations, `dagster.yaml` and the grants are in it."""
    folder = scratch / "wheel"
    folder.mkdir()
    command, home = str(python.with_name("ticketflow")), str(folder / "home")
    assert "--check" in run([command, "roles", "--help"], folder)
    assert "up to date" in run([command, "migrate"], folder, TICKETFLOW_HOME=home)
    assert run([command, "roles"], folder, TICKETFLOW_HOME=home).endswith("The roles are set up.\n")
    assert run([command, "roles", "--check"], folder, TICKETFLOW_HOME=home).startswith("Every role has what it needs")
    assert (folder / "home" / "dagster" / "dagster.yaml").is_file()
