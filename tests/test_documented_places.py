"""The files, modules, targets and tests that README and docs name are ones that there are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".md", ".conf", ".yaml"}),
]
FOLDERS = ("ticketflow_orch", "resources", "assets", "schedules", "sensors", "tests", "docs", "deploy", "benchmarks")
# What an installation has, and this repository does not.
ELSEWHERE = {"dagster.yaml", "delivery.toml"}
# A path, or the name of a file with one of our endings. In a home, below the root, or with a placeholder: elsewhere.
_PATH = re.compile(r"(?:[a-z_0-9]+/)+(?:[\w.-]+\.(?:py|md|sql|toml|yaml|lock))?|[\w-]+\.(?:py|md|sql|toml|yaml|lock)")
# Tags of Dagster, and names that a reader is to fill in.
_NOT_A_PLACE = re.compile(r"^dagster/|^ticketflow/|NAME|NNNN")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def there() -> set[str]:
    """Every file and folder of ours, by its path."""
    found = {path.name for path in ROOT.iterdir()}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if "__pycache__" not in path.parts:
                found.add(path.relative_to(ROOT).as_posix())
        found.add(folder)
    return found


def spans(page: Path) -> list[str]:
    """What stands between backticks, or in a page of SQL anywhere."""
    text = page.read_text("utf-8")
    return re.findall(r"`([^`\n]+)`", text) if page.suffix == ".md" else text.split()


def functions() -> set[str]:
    """The name of every test."""
    sources = (file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_pages_name_is_there(page: Path) -> None:
    places, names = there(), functions()
    rooms = {f"/{place}" for place in places}
    for span in spans(page):
        if _PATH.fullmatch(span) and span not in ELSEWHERE and not _NOT_A_PLACE.search(span):
            # Where a page speaks of a room, its files and folders stand without it.
            assert any(room.endswith(f"/{span.rstrip('/')}") for room in rooms), span
        if re.fullmatch(r"test_\w+", span):
            assert span in names, span
        if re.fullmatch(r"ticketflow_orch(\.\w+)+", span):
            assert find_spec(span) is not None, span
        if command := re.match(r"python -m ([\w.]+)", span):
            assert find_spec(command[1]) is not None, span
        if target := re.match(r"make ([a-z-]+)", span):
            assert f"\n{target[1]}:" in (ROOT / "Makefile").read_text("utf-8"), span


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text("utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        file, _, heading = link.partition("#")
        target = page if not file else (page.parent / file).resolve()
        assert target.exists(), link
        if heading:
            assert heading in headings(target), link


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_of_the_rooms_has_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.split("| room | holds |")[1].split("\n\n")[0]
    cells = (row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    listed = {name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    rooms = {path.name for path in (ROOT / "ticketflow_orch").iterdir() if (path / "__init__.py").is_file()}
    assert rooms - {"migrations"} <= listed
