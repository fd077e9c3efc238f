"""What a pass would post if it began now: computed as the pass computes it, in a transaction that can write nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.errors import in_words, is_data_fault
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.csv_files import Writer, exact
from ticketflow_orch.formatting.output_files import ordinary_file
from ticketflow_orch.months import Month, Window
from ticketflow_orch.periods.state import why_nothing_is_posted
from ticketflow_orch.periods.windows import month_windows
from ticketflow_orch.periods.zones import in_unknown_zones, zones_in_use
from ticketflow_orch.settlement.chunking import cut
from ticketflow_orch.settlement.due import require_settleable
from ticketflow_orch.settlement.late_movements import (
    CHANGED_CHUNKS,
    Unread,
    months_to_watch,
    read_to,
)
from ticketflow_orch.settlement.posting import (
    AMOUNTS,
    IN_LIST,
    IN_RANGE,
    LARGEST_ID,
    Chunk,
    chunk_parameters,
    difference,
)


@dataclass(frozen=True, slots=True)
class WouldPost:
    """One entry that a pass would post about `origin`: its first settlement, or what came late.

    `posted` is the net that the ledger has, `amounts` what would be added, in minor units and the order of `AMOUNTS`.
    """

    external_ref: str
    currency: str
    exponent: int
    origin: Month
    is_settlement: bool
    posted: int
    amounts: tuple[int, ...]

    @property
    def difference(self) -> int:
        """What would be added to the net."""
        return self.amounts[-1]


@dataclass(frozen=True, slots=True)
class WouldPostTotal:
    """All entries about `origin` in one currency: how many of which kind, and what they add to the net."""

    origin: Month
    currency: str
    exponent: int
    settlements: int
    adjustments: int
    net: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a pass of `month` would post at `at` (UTC); nothing was written.

    `why_nothing`: why the month is posted in no more, in a sentence, if so. `listed` are the first entries. Each of
    `would_be_parked` is an organization, the month it fails in and the database's error.
    """

    month: Month
    at: datetime
    why_nothing: str | None
    totals: tuple[WouldPostTotal, ...]
    listed: tuple[WouldPost, ...]
    would_be_parked: tuple[tuple[str, Month, str], ...]

    @property
    def entries(self) -> int:
        """How many entries would be posted."""
        return sum(total.settlements + total.adjustments for total in self.totals)

    @property
    def more(self) -> int:
        """How many entries are not listed."""
        return self.entries - len(self.listed)


def dry_run(
    engine: Engine,
    month: Month,
    *,
    now: datetime,
    first_month: Month,
    chunk_size: int = 20_000,
    shown: int = 20,
    file: Path | None = None,
) -> DryRun:
    """Compute what a pass of `month` would post now; list the first `shown` entries, write all to `file` as CSV.

    Movements that other sessions have not committed are not seen, where a pass would wait for them. `file` is there as
    a whole or not at all.

    Raises:
        InvalidInput: the month is before `first_month`, or `file` cannot be written.
        PreconditionFailed: the month is not over in every zone in use.
    """
    counted = _Counted(shown)
    with _read_only(engine) as connection, _csv_file(file) as write:
        require_settleable(connection, month, now, first_month)
        at = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        why_nothing = why_nothing_is_posted(connection, month)
        if why_nothing is None:
            comparison = _Comparison(connection, month, counted)
            for chunk, windows in comparison.chunks(chunk_size):
                for entry in comparison.entries(chunk, windows):
                    counted.add(entry)
                    write(month, entry)
    return DryRun(
        month=month,
        at=at,
        why_nothing=why_nothing,
        totals=counted.totals(),
        listed=tuple(counted.listed),
        would_be_parked=tuple(counted.would_be_parked),
    )


class _Counted:
    """The entries so far: sums by origin month and currency, the first few, and who would be parked."""

    def __init__(self, shown: int) -> None:
        self.listed: list[WouldPost] = []
        self.would_be_parked: list[tuple[str, Month, str]] = []
        self._shown = shown
        self._sums: dict[tuple[Month, str, int], list[int]] = {}

    def add(self, entry: WouldPost) -> None:
        sums = self._sums.setdefault((entry.origin, entry.currency, entry.exponent), [0, 0, 0])
        sums[0 if entry.is_settlement else 1] += 1
        sums[2] += entry.difference
        if len(self.listed) < self._shown:
            self.listed.append(entry)

    def totals(self) -> tuple[WouldPostTotal, ...]:
        return tuple(WouldPostTotal(*key, *sums) for key, sums in sorted(self._sums.items()))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What is posted beside what the movements come to, as a pass of `month` that began now would find both."""

    connection: Connection
    month: Month
    counted: _Counted

    def chunks(self, size: int) -> Iterator[tuple[Chunk, dict[str, Window]]]:
        """The chunks as a pass would cut them, those about closed months first, each with its month's time windows."""
        timezones = zones_in_use(self.connection)
        watched = months_to_watch(self.connection, self.month, timezones, LARGEST_ID)
        windows = month_windows(self.connection, (*watched, self.month), timezones)
        for row in in_unknown_zones(self.connection, self.month, (*watched, self.month), LARGEST_ID):
            self.counted.would_be_parked.append((row.external_ref, Month.of_day(row.origin_month), row.error))
        is_first = read_to(self.connection, [self.month])[self.month] == 0
        own = None if is_first else self.month
        others = {month: windows[month] for month in (*watched, *([] if own is None else [own]))}
        unread = Unread.of(self.connection, others, LARGEST_ID, own=own)
        for row in self.connection.exec_driver_sql(_CHANGED_CHUNKS, unread.parameters() | {"size": size}).all():
            origin = Month.of_day(row.origin_month)
            yield Chunk(origin, row.low_id, row.high_id, tuple(row.organizations)), windows[origin]
        for low, high in cut(self.connection, size) if is_first else ():
            yield Chunk(self.month, low, high), windows[self.month]

    def entries(self, chunk: Chunk, windows: dict[str, Window]) -> Iterator[WouldPost]:
        """What would be posted for a chunk; one that fails on data is halved down to the organization that fails."""
        parameters = chunk_parameters(self.month, chunk, windows, LARGEST_ID)
        statement = _WOULD_POST if chunk.organizations is None else _WOULD_POST_FOR_LISTED
        try:
            with self.connection.begin_nested():
                rows = self.connection.exec_driver_sql(statement, parameters).all()
        except DBAPIError as error:
            if not is_data_fault(error):
                raise
            yield from self._halves(chunk, windows, in_words(error))
            return
        for row in rows:
            amounts = tuple(int(getattr(row, name)) for name in AMOUNTS)
            is_settlement = row.is_new and self.month == chunk.origin
            yield WouldPost(
                row.external_ref, row.currency, row.exponent, chunk.origin, is_settlement, int(row.posted), amounts
            )

    def _halves(self, chunk: Chunk, windows: dict[str, Window], error: str) -> Iterator[WouldPost]:
        found = self.connection.exec_driver_sql(_ORGANIZATIONS, {"low": chunk.low_id, "high": chunk.last_id}).all()
        if chunk.organizations is not None:
            found = [row for row in found if row.id in chunk.organizations]
        if len(found) == 1:
            self.counted.would_be_parked.append((found[0].external_ref, chunk.origin, error))
            return
        ids, half = tuple(row.id for row in found), len(found) // 2
        listed = (None, None) if chunk.organizations is None else (ids[:half], ids[half:])
        yield from self.entries(Chunk(chunk.origin, chunk.low_id, ids[half] - 1, listed[0]), windows)
        yield from self.entries(Chunk(chunk.origin, ids[half], chunk.high_id, listed[1]), windows)


@contextmanager
def _read_only(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the database and in which Postgres refuses every write."""
    with engine.connect() as connection:
        yield connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        connection.rollback()


@contextmanager
def _csv_file(path: Path | None) -> Iterator[Callable[[Month, WouldPost], None]]:
    """Something to hand each entry to; with a path, a CSV file is in its place once the block has ended well."""
    if path is None:
        yield lambda _month, _entry: None
        return
    place = ordinary_file(path)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = Writer(file)
            writer.writerow(_HEADER)
            yield lambda month, entry: writer.writerow(_cells(month, entry))
        draft.replace(place)
    except OSError as error:
        raise InvalidInput(f"The file {path} cannot be written ({error.strerror}); name another one.") from error
    finally:
        draft.unlink(missing_ok=True)


_HEADER = ("organization", "posted_in", "origin_month", "kind", "currency", "posted_net", "new_net", *AMOUNTS)


def _cells(month: Month, entry: WouldPost) -> Sequence[str]:
    kind = "settlement" if entry.is_settlement else "adjustment"
    amounts = (entry.posted, entry.posted + entry.difference, *entry.amounts)
    written = (exact(amount, entry.exponent) for amount in amounts)
    return entry.external_ref, str(month), str(entry.origin), kind, entry.currency, *written


_CHANGED_CHUNKS = sql(__file__, "changed_chunks", changed_chunks=CHANGED_CHUNKS)


_WOULD_POST = sql(__file__, "would_post", difference=difference(IN_RANGE))

_WOULD_POST_FOR_LISTED = sql(__file__, "would_post", difference=difference(IN_LIST))

_ORGANIZATIONS = """
    SELECT id, external_ref FROM organization
    WHERE id BETWEEN %(low)s::bigint AND %(high)s::bigint ORDER BY id
"""
