"""What Dagster keeps to itself is there, means what we think, and is imported in one place."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from dagster._core.storage import tags

from ticketflow_orch.dagster_host import dagster_internals
from ticketflow_orch.jobs import firings

ROOT = Path(__file__).parents[2]
HERE = ROOT / "ticketflow_orch" / "dagster_host" / "dagster_internals.py"


def imports(file: Path) -> set[tuple[str, str]]:
    """The private modules of Dagster that `file` imports from, each with a name."""
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dagster._")
        for alias in node.names
    }


def test_every_private_name_of_dagster_is_there() -> None:
    assert [
        (module, name) for module, name in sorted(imports(HERE)) if not hasattr(importlib.import_module(module), name)
    ] == []
    logs = dagster_internals.NO_COMPUTE_LOGS
    assert hasattr(importlib.import_module(logs["module"]), logs["class"])


def test_no_other_module_imports_a_private_name_of_dagster() -> None:
    rooms = ("ticketflow_orch", "resources", "assets", "schedules", "sensors")
    files = (file for room in rooms for file in (ROOT / room).rglob("*.py"))
    assert [str(file.relative_to(ROOT)) for file in files if file != HERE and imports(file)] == []


def test_the_business_knows_dagster_s_tags_by_their_names() -> None:
    ours = (firings.PARENT_RUN, firings.ROOT_RUN, firings.PARTITION, firings.MAX_RUNTIME, *firings.PARTITION_RANGE)
    assert ours == (
        tags.PARENT_RUN_ID_TAG, tags.ROOT_RUN_ID_TAG, tags.PARTITION_NAME_TAG, tags.MAX_RUNTIME_SECONDS_TAG,
        tags.ASSET_PARTITION_RANGE_START_TAG, tags.ASSET_PARTITION_RANGE_END_TAG,
    )  # fmt: skip
