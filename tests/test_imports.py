"""Imports run one way: the business knows no Dagster, and nobody imports the rooms that are built on them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUSINESS, ENTRY = "business", "entry points"
ENTRY_POINTS = (
    "ticketflow_orch.definitions",
    "ticketflow_orch.__main__",
    "ticketflow_orch.cli",
    # What dagster.yaml names.
    "ticketflow_orch.dagster_host.storage",
    "ticketflow_orch.dagster_host.run_launcher",
    "ticketflow_orch.dagster_host.kubernetes_launcher",
    "ticketflow_orch.dagster_host.instance",
    "ticketflow_orch.dagster_host.webserver",
)
# What stands for the private names of Dagster, so that it counts as Dagster.
OF_DAGSTER = "ticketflow_orch.dagster_host.dagster_internals"
# Each room, and which rooms it may import from besides itself. A schedule or sensor may name the asset it runs.
MAY_IMPORT = {
    BUSINESS: set(),
    "dagster": set(),
    "resources": {BUSINESS, "dagster"},
    "assets": {BUSINESS, "dagster", "resources"},
    "schedules": {BUSINESS, "dagster", "resources", "assets"},
    # They watch what happens by the clock.
    "sensors": {BUSINESS, "dagster", "resources", "assets", "schedules"},
    ENTRY: {BUSINESS, "dagster", "resources", "assets", "schedules", "sensors"},
}
# The rooms of the business and its entry points, from the ground up: each may import from those before it. `local` and
# `db` come first; who delivers knows nobody who has something delivered but by `event_handlers`.
FLOORS = (
    "errors", "months", "clock", "formatting", "secret_variables", "settings", "migrations", "db", "local", "outbox",
    "periods", "jobs", "ticketing", "settlement", "importing", "closing", "payouts", "demo_data", "statements",
    "installation", "dagster_host", "mail", "reports", "monitoring", "auditing", "event_handlers", "definitions", "cli",
    "__main__",
)  # fmt: skip
PACKAGES = ("ticketflow_orch", "resources", "assets", "schedules", "sensors")


def room(module: str) -> str | None:
    """The room that `module` lies in; None for the standard library and for packages that anybody may use."""
    package = module.split(".", maxsplit=1)[0]
    if module == OF_DAGSTER or module.startswith(f"{OF_DAGSTER}."):
        return "dagster"
    if package == "ticketflow_orch":
        return ENTRY if any(f"{module}.".startswith(f"{name}.") for name in ENTRY_POINTS) else BUSINESS
    if package == "dagster" or package.startswith("dagster_"):
        return "dagster"
    return package if package in PACKAGES else None


def imported(source: str, package: str) -> set[str]:
    """Every module that `source`, in `package`, imports anywhere, as `a.b` or, for `from a import b`, as both."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return found


def violations(module: str, source: str, *, is_package: bool = False) -> set[str]:
    """The imports of `module` that run against the one way."""
    home = room(module)
    assert home is not None
    package = module if is_package else module.rpartition(".")[0]
    wrong = set()
    for name in imported(source, package):
        target = room(name)
        if target not in {None, home} and target not in MAY_IMPORT[home]:
            wrong.add(f"{module} ({home}) imports {name} ({target})")
    return wrong


def modules() -> dict[str, Path]:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def test_imports_run_one_way() -> None:
    wrong = [
        violations(module, file.read_text("utf-8"), is_package=file.name == "__init__.py")
        for module, file in modules().items()
        # Alembic loads revisions by their path; their names are no module's.
        if not file.stem[0].isdigit()
    ]
    assert sorted(set().union(*wrong)) == []


def test_the_rooms_of_the_business_stand_upon_each_other() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, file in modules().items()
        if module.startswith("ticketflow_orch.") and not file.stem[0].isdigit()
        for name in imported(
            file.read_text("utf-8"), module if file.name == "__init__.py" else module.rpartition(".")[0]
        )
        if name.startswith("ticketflow_orch.") and _floor(name) > _floor(module)
    ]
    assert sorted(wrong) == []


def _floor(module: str) -> int:
    return FLOORS.index(module.split(".")[1])


def test_every_room_is_looked_at() -> None:
    assert {room(module) for module in modules()} == set(MAY_IMPORT)


def test_the_business_runs_where_dagster_does_not() -> None:
    business = sorted(module for module in modules() if room(module) == BUSINESS and "migrations" not in module)
    program = f"""
import importlib, sys
sys.modules["dagster"] = None  # importing it raises
for name in {business!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_a_run_does_not_wait_for_what_few_runs_need() -> None:
    slow = ("pyarrow", "jinja2", "babel", "upath", "fsspec", "urllib3", "pandas")
    program = f"""
import sys
import ticketflow_orch.definitions
print(*(name for name in {slow!r} if name in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60, stdout=subprocess.PIPE)
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ticketflow_orch.months", "import dagster"),
        ("ticketflow_orch.months", "from dagster import asset"),
        ("ticketflow_orch.months", "import dagster_postgres.storage as storage"),
        ("ticketflow_orch.months", "def late():\n    from resources import ClockResource"),
        ("ticketflow_orch.months", "if TYPE_CHECKING:\n    import assets.monthly_settlement"),
        ("ticketflow_orch.months", "from ticketflow_orch import cli"),
        ("ticketflow_orch.settlement.due", "from ..dagster_host.instance import running"),
        ("ticketflow_orch.months", "from . import definitions"),
        ("ticketflow_orch.demo_data.names", "import dagster"),
        ("resources.clock", "import assets"),
        ("resources.clock", "from ticketflow_orch.definitions import defs"),
        ("assets.monthly_settlement", "from schedules import settlement"),
        ("schedules.settlement", "import sensors.relay"),
        ("assets.monthly_settlement", "from schedules.settlement import settlement_schedule"),
        ("sensors.relay", "from ticketflow_orch.dagster_host import instance"),
    ],
)
def test_an_import_against_the_one_way_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) > 0


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ticketflow_orch.months", "import datetime, sqlalchemy\nfrom ticketflow_orch.errors import TicketflowError"),
        ("ticketflow_orch.settlement.due", "from ..months import Month\nfrom . import passes"),
        ("ticketflow_orch.months", "text = 'import dagster'  # from assets import x"),
        ("ticketflow_orch.definitions", "import dagster, assets, resources, schedules, sensors"),
        (
            "ticketflow_orch.cli.settle",
            "import dagster\nfrom ticketflow_orch.dagster_host.instance import x",
        ),
        ("resources.clock", "import dagster as dg\nfrom ticketflow_orch import clock"),
        ("schedules.settlement", "from assets import monthly_settlement\nfrom resources import ClockResource"),
    ],
)
def test_an_import_along_the_one_way_is_none(module: str, source: str) -> None:
    assert violations(module, source) == set()
