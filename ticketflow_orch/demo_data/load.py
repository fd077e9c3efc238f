"""Loading the demo data set of a database, once, as an import; `organizer` makes the rows up, `work` comes on top."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from sqlalchemy import Connection, Engine

from ticketflow_orch.demo_data.organizer import Organizer, Row
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.importing.format import KINDS, Batch, Kind
from ticketflow_orch.importing.import_lock import import_turn, vacuum
from ticketflow_orch.importing.loading import Counts, import_batches
from ticketflow_orch.importing.staging import Progress
from ticketflow_orch.months import Month, months_between

_ORGANIZATIONS_PER_BATCH = 50
_RESERVATIONS_PER_ORGANIZATION_AND_YEAR = 75
_IDLE_PERCENT = 3


@dataclass(frozen=True, slots=True)
class DemoData:
    """The demo data set of a database. `loaded` is whether this call brought it; otherwise it was there already."""

    import_id: int
    source: str
    loaded: bool
    rows: Counts

    @property
    def last_month(self) -> Month:
        """The last month with sales."""
        return Month.parse(self.source.split()[3].rstrip(","))

    def __str__(self) -> str:
        if self.loaded:
            return f"Loaded {self.rows} as import {self.import_id} ({self.source})."
        return f"The demo data is there already as import {self.import_id} ({self.source}): {self.rows}."


def load_demo(
    engine: Engine,
    last_month: Month,
    months: int = 12,
    organizations: int = 400,
    seed: int = 2026,
    *,
    progress: Progress | None = None,
) -> DemoData:
    """Load `months` months of sales that end with `last_month`; some events lie ahead of it.

    A database holds one demo data set: when there is one, whatever it was made with, nothing happens. It is an import
    like others, and `undo_import` takes it back.

    Raises:
        InvalidInput: `months` or `organizations` is not positive.
    """
    for name, value in (("months", months), ("organizations", organizations)):
        if value < 1:
            raise InvalidInput(f"The demo needs at least 1 of its {name}, not {value}.")
    first_month = last_month
    for _ in range(months - 1):
        first_month = first_month.previous()
    source = f"demo {first_month} to {last_month}, {organizations} organizations, seed {seed}"
    with import_turn(engine) as connection:
        present = _data_sets(connection)
        if present:
            return present[0]
        batches = demo_batches(first_month, last_month, organizations, seed)
        import_batches(connection, source, batches, first_month, progress)
        (demo,) = _data_sets(connection)
    vacuum(engine, demo.rows.tables())
    return replace(demo, loaded=True)


def require_no_others(engine: Engine) -> None:
    """Refuse a database with organizations that are not the demo's, since what is closed stays closed.

    Raises:
        PreconditionFailed: there is one; names it.
    """
    with engine.connect() as connection:
        other = connection.exec_driver_sql(_OTHER).scalar_one_or_none()
    if other is not None:
        raise PreconditionFailed(
            f"The demo closes months for good, and {other!r} in this database is none of its organizations; give the "
            "demo a TICKETFLOW_HOME of its own."
        )


def _data_sets(connection: Connection) -> list[DemoData]:
    """The demo data sets that are there, of which there is never more than one."""
    return [
        DemoData(
            row.id, row.source, False, Counts(row.organizations, row.events, row.reservations, row.money_movements)
        )
        for row in connection.exec_driver_sql(_DATA_SETS)
    ]


def demo_batches(first_month: Month, last_month: Month, organizations: int, seed: int) -> Iterator[Batch]:
    """The rows of a demo data set as an import takes them, a few organizations at a time."""
    budgets = _budgets(organizations, len(list(months_between(first_month, last_month))), seed)
    done = dict.fromkeys(KINDS, 0)
    for start in range(0, organizations, _ORGANIZATIONS_PER_BATCH):
        rows: dict[Kind, list[Row]] = {kind: [] for kind in KINDS}
        for number in range(start, min(start + _ORGANIZATIONS_PER_BATCH, organizations)):
            draw = Random(f"{seed}/{number}")  # noqa: S311 - it draws stories, not secrets
            for kind, lived in Organizer(number, first_month, last_month, draw).live(budgets[number]).items():
                rows[kind] += lived
        for kind in KINDS:
            names = [column.name for column in kind.columns]
            yield Batch(kind, f"demo {kind.name}", names, enumerate(rows[kind], done[kind] + 1))
            done[kind] += len(rows[kind])


def _budgets(organizations: int, months: int, seed: int) -> list[int]:
    """How many reservations each organization may have: a few sell most, many sell little, some nothing."""
    draw = Random(seed)  # noqa: S311 - as above
    ranks = draw.sample(range(1, organizations + 1), organizations)
    weights = [rank**-0.8 for rank in ranks]
    share = _RESERVATIONS_PER_ORGANIZATION_AND_YEAR * organizations * months / 12 / sum(weights)
    return [0 if draw.randrange(100) < _IDLE_PERCENT else round(share * weight) for weight in weights]


_OTHER = "SELECT external_ref FROM organization WHERE external_ref NOT LIKE 'demo-%%' LIMIT 1"

_DATA_SETS = """
    SELECT id, source, organizations, events, reservations, money_movements
    FROM data_import WHERE source LIKE 'demo %%' AND undone_at IS NULL
"""
