"""The commands that README and docs show are ones that there are, found where those pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ticketflow_orch import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("ticketflow_orch", "resources", "assets", "schedules", "sensors")
ACTIVATE = "source .venv/bin/activate"


def shown(page: Path) -> set[str]:
    """Every command that a page shows: a line of its own, or between backticks."""
    text = page.read_text("utf-8")
    return set(re.findall(r"(?:^|`)(ticketflow [a-z][^`\n]*)", text, re.MULTILINE))


def require_there(line: str) -> None:
    commands = getattr(cli.command(), "commands", None)
    for word in line.split()[1:]:
        if commands is None or word.startswith("-"):
            break
        assert word in commands, line
        commands = getattr(commands[word], "commands", None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_that_is_shown_is_there(page: Path) -> None:
    for line in shown(page):
        require_there(line)


def test_each_command_that_is_advised_is_there() -> None:
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    # In backticks where a sentence says it, in an apostrophe where the database does.
    advised = {
        line for path in sources for line in re.findall(r"[`'](ticketflow [a-z][a-z -]*)", path.read_text("utf-8"))
    }
    assert len(advised) > 50
    for line in advised:
        require_there(line)


def test_the_pages_say_how_ticketflow_becomes_a_command() -> None:
    for page in ("README.md", "docs/analysts.md"):
        assert ACTIVATE in (ROOT / page).read_text("utf-8"), page


def test_what_is_activated_has_the_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    script = tmp_path / ".venv" / "bin" / "ticketflow"
    script.symlink_to(Path(sys.executable).with_name("ticketflow"))
    said = subprocess.run(
        ["bash", "-c", f"{ACTIVATE} && command -v ticketflow && ticketflow --version"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert said[0] == str(script)
