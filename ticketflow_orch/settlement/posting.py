"""Posting a chunk: what its organizations' movements of a month come to, minus what the ledger has of them.

Windows reach the statements as arrays: computed by `months`, fixed in `settlement_window`, never by Postgres' zones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month, Window, months_between
from ticketflow_orch.settlement.currencies import currency_of

# What an id may be: the application may name an organization's id, so none is too small.
SMALLEST_ID, LARGEST_ID = -(2**63), 2**63 - 1

AMOUNTS = ("captures", "refunds", "chargebacks", "fees", "commission", "commission_tax", "net")

# Of movements grouped by rate, what one line comes to, and that rounded once: lists of columns.
LINE = sql(__file__, "line")
ROUNDED_LINE = sql(__file__, "rounded_line")

# A chunk is a range of organizations, or a list of those that can have changed.
IN_RANGE = "BETWEEN %(low)s::bigint AND %(high)s::bigint AND {id} <> ALL (%(left_out)s::bigint[])"
IN_LIST = "= ANY (%(organizations)s::bigint[])"
TO_CUTOFF = "%(cutoff)s::bigint"


def recomputed(members: str = IN_RANGE, cutoff: str = TO_CUTOFF) -> str:
    """The queries `line`, `rounded` and `recomputed`: what the movements of the members come to, up to the cutoff.

    Binds are those of `month_parameters`, and `organizations` for `IN_LIST`.
    """
    return sql(
        __file__,
        "recomputed",
        line=LINE,
        rounded_line=ROUNDED_LINE,
        currency=currency_of("%(origin)s::date"),
        members=members.format(id="organization.id"),
        cutoff=cutoff,
    )


def difference(members: str = IN_RANGE, cutoff: str = TO_CUTOFF) -> str:
    """`recomputed` minus what is posted, for every key that either side knows, as the query `difference`.

    `differs` is false where nothing came late. Binds are those of `chunk_parameters`.
    """
    return sql(
        __file__,
        "difference",
        recomputed=recomputed(members, cutoff),
        members=members.format(id="organization_id"),
        sums=", ".join(f"sum({name})::bigint AS {name}" for name in AMOUNTS),
        differences=", ".join(
            f"coalesce(recomputed.{name}, 0) - coalesce(posted.{name}, 0) AS {name}" for name in AMOUNTS
        ),
        recomputed_amounts=", ".join(f"coalesce(recomputed.{name}, 0)" for name in AMOUNTS),
        posted_amounts=", ".join(f"coalesce(posted.{name}, 0)" for name in AMOUNTS),
    )


_INSERTED = {
    "columns": f"organization_id, month, currency, origin_month, sequence, {', '.join(AMOUNTS)}",
    "amounts": ", ".join(AMOUNTS),
}

_POST_FIRST = sql(__file__, "post_first", recomputed=recomputed(), **_INSERTED)

_POST_DIFFERENCE = sql(__file__, "post_difference", difference=difference(IN_RANGE), **_INSERTED)

_POST_DIFFERENCE_OF_LISTED = sql(__file__, "post_difference", difference=difference(IN_LIST), **_INSERTED)

# Until statistics know of a month, the planner would find what is posted by reading all of the month through its BRIN
# index, once a chunk, where the key's index has the chunk's entries side by side.
_WITHOUT_BITMAPS = "SET LOCAL enable_bitmapscan = off"


@dataclass(frozen=True, slots=True)
class Pass:
    """One settlement of `month`: it reads the movements whose id is below `cutoff`, which was drawn at `cutoff_at`.

    `number` counts from 1; a month that had ledger entries before its first pass starts with 2, since 1 stands for
    "nothing is posted yet". `is_full`: it recomputes every organization, whatever the passes before have read.
    """

    month: Month
    number: int
    cutoff: int
    cutoff_at: datetime
    is_full: bool = False

    @property
    def key(self) -> dict[str, Any]:
        """The pass's primary key as bound parameters."""
        return {"month": self.month.first_day, "pass": self.number}


@dataclass(frozen=True, slots=True)
class Chunk:
    """The organizations from `low_id` to `high_id` (None: all from there on), looked at for the month `origin`.

    Where `organizations` are named, only those of them.
    """

    origin: Month
    low_id: int
    high_id: int | None
    organizations: tuple[int, ...] | None = None

    @property
    def last_id(self) -> int:
        """The largest id that may lie in the chunk."""
        return LARGEST_ID if self.high_id is None else self.high_id


@dataclass(frozen=True, slots=True)
class Posted:
    """What one statement did: settlement rows written, adjustments written, rows found as they should be."""

    rows_new: int = 0
    rows_adjusted: int = 0
    rows_existing: int = 0


def month_parameters(origin: Month, windows: dict[str, Window], cutoff: int) -> dict[str, Any]:
    """The parameters that `recomputed` takes for the month it is about, over all organizations but those `left_out`."""
    timezones: Sequence[str] = sorted(windows)
    return {
        "origin": origin.first_day,
        "next_origin": origin.next().first_day,
        "timezones": timezones,
        "starts": [windows[name].starts_at for name in timezones],
        "ends": [windows[name].ends_at for name in timezones],
        "cutoff": cutoff,
        "low": SMALLEST_ID,
        "high": LARGEST_ID,
        "left_out": [],
    }


def chunk_parameters(month: Month, chunk: Chunk, windows: dict[str, Window], cutoff: int) -> dict[str, Any]:
    """The parameters that `difference` takes for a chunk of a pass of `month`."""
    parameters = month_parameters(chunk.origin, windows, cutoff)
    if chunk.organizations is not None:
        parameters["organizations"] = list(chunk.organizations)
    return parameters | {
        "month": month.first_day,
        "posting_months": [each.first_day for each in months_between(chunk.origin, month)],
        "low": chunk.low_id,
        "high": chunk.last_id,
    }


def post_chunk(
    connection: Connection, settlement: Pass, chunk: Chunk, windows: dict[str, Window], run_id: str, *, first: bool
) -> Posted:
    """Post, in the pass's month, what the ledger lacks for the chunk's organizations and origin month.

    `first`: nothing of the month is posted yet, so nothing is looked up; should that be wrong, the key refuses.
    """
    parameters = chunk_parameters(settlement.month, chunk, windows, settlement.cutoff)
    parameters |= settlement.key | {"run_id": run_id}
    if first and chunk.origin == settlement.month:
        return Posted(rows_new=connection.exec_driver_sql(_POST_FIRST, parameters).rowcount)
    connection.exec_driver_sql(_WITHOUT_BITMAPS)
    statement = _POST_DIFFERENCE if chunk.organizations is None else _POST_DIFFERENCE_OF_LISTED
    return Posted(**connection.exec_driver_sql(statement, parameters).one()._asdict())
