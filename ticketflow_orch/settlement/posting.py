"""The settlement's SQL: what an organization's movements of a month come to, and how that is posted.

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

# What the movements of one rate come to, exactly, and rounded once.
LINE = """sum(amount) * movement.commission_rate_bps * 0.0001 AS exact_commission,
            CAST(coalesce(sum(amount) FILTER (WHERE kind = 'CAPTURE'), 0) AS bigint) AS captures,
            CAST(coalesce(sum(amount) FILTER (WHERE kind = 'REFUND'), 0) AS bigint) AS refunds,
            CAST(coalesce(sum(amount) FILTER (WHERE kind IN ('CHARGEBACK', 'CHARGEBACK_REVERSAL')), 0) AS bigint)
                AS chargebacks,
            CAST(coalesce(sum(amount) FILTER (WHERE kind IN ('FEE', 'MANUAL')), 0) AS bigint) AS fees"""
ROUNDED_LINE = """captures, refunds, chargebacks, fees,
            CAST(round(exact_commission) AS bigint) AS commission,
            CAST(round(round(exact_commission) * commission_tax_bps * 0.0001) AS bigint) AS commission_tax"""

# A chunk is a range of organizations, or a list of those that can have changed.
IN_RANGE = "BETWEEN %(low)s::bigint AND %(high)s::bigint AND {id} <> ALL (%(left_out)s::bigint[])"
IN_LIST = "= ANY (%(organizations)s::bigint[])"
TO_CUTOFF = "%(cutoff)s::bigint"


def recomputed(members: str = IN_RANGE, cutoff: str = TO_CUTOFF) -> str:
    """The queries `line`, `rounded` and `recomputed`: what the movements of the members come to, up to the cutoff.

    Shape and order decide the plan, which reads the chunk's organizations in key order and of the movements only the
    month's part of an index. The zero movement gives every active organization its row in its currency of the month; it
    carries the organization's own rates, because there it seldom makes one more line to round.
    """
    return f"""
    time_window AS MATERIALIZED (
        SELECT * FROM unnest(
            %(timezones)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
        ) AS zone_window (timezone, starts_at, ends_at)
    ), line AS (
        SELECT organization.id AS organization_id, movement.currency,
            movement.commission_rate_bps, movement.commission_tax_bps, {LINE}
        FROM organization
        JOIN time_window USING (timezone)
        CROSS JOIN LATERAL (
            SELECT money_movement.currency, kind, amount, money_movement.commission_rate_bps,
                money_movement.commission_tax_bps
            FROM money_movement
            WHERE organization_id = organization.id
                AND occurred_at >= time_window.starts_at AND occurred_at < time_window.ends_at
                AND money_movement.id < {cutoff}
            UNION ALL
            SELECT {currency_of("%(origin)s::date")}, 'CAPTURE', 0,
                organization.commission_rate_bps, organization.commission_tax_bps
            WHERE joined_on < %(next_origin)s::date
                AND (left_on IS NULL OR left_on >= %(origin)s::date)
        ) AS movement
        WHERE organization.id {members.format(id="organization.id")}
        GROUP BY organization.id, movement.currency, movement.commission_rate_bps, movement.commission_tax_bps
    ), rounded AS (
        SELECT organization_id, currency, commission_rate_bps, commission_tax_bps, {ROUNDED_LINE}
        FROM line
    ), recomputed AS (
        SELECT organization_id, currency,
            CAST(sum(captures) AS bigint) AS captures, CAST(sum(refunds) AS bigint) AS refunds,
            CAST(sum(chargebacks) AS bigint) AS chargebacks, CAST(sum(fees) AS bigint) AS fees,
            CAST(sum(commission) AS bigint) AS commission, CAST(sum(commission_tax) AS bigint) AS commission_tax,
            CAST(sum(captures) + sum(refunds) + sum(chargebacks) + sum(fees) - sum(commission) - sum(commission_tax)
                AS bigint) AS net
        FROM rounded
        GROUP BY organization_id, currency
    )"""


def difference(members: str = IN_RANGE, cutoff: str = TO_CUTOFF) -> str:
    """`recomputed` minus what is posted, for every key that either side knows, as the query `difference`.

    Posted in the months of `:posting_months`, which are named one by one because the ledger's key begins with them.
    `differs` is false where nothing came late.
    """
    return f"""
    {recomputed(members, cutoff)}, posted AS (
        SELECT organization_id, currency,
            {", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in AMOUNTS)},
            max(sequence) FILTER (WHERE month = %(month)s::date) AS last_sequence
        FROM ledger_entry
        WHERE month = ANY (%(posting_months)s::date[]) AND origin_month = %(origin)s::date
            AND organization_id {members.format(id="organization_id")}
        GROUP BY organization_id, currency
    ), difference AS (
        SELECT organization_id, currency, posted.organization_id IS NULL AS is_new, posted.last_sequence,
            {", ".join(f"coalesce(recomputed.{name}, 0) - coalesce(posted.{name}, 0) AS {name}" for name in AMOUNTS)},
            ({", ".join(f"coalesce(recomputed.{name}, 0)" for name in AMOUNTS)})
                <> ({", ".join(f"coalesce(posted.{name}, 0)" for name in AMOUNTS)}) AS differs
        FROM recomputed FULL JOIN posted USING (organization_id, currency)
    )"""


_COLUMNS = f"organization_id, month, currency, origin_month, sequence, {', '.join(AMOUNTS)}"

_POST_FIRST = sql(__file__, "post_first", recomputed=recomputed(), columns=_COLUMNS, join_amounts=", ".join(AMOUNTS))

# Until statistics know of a month, the planner would find what is posted by reading all of the month through its BRIN
# index, once a chunk, where the key's index has the chunk's entries side by side.
_WITHOUT_BITMAPS = "SET LOCAL enable_bitmapscan = off"


def _post_difference(members: str) -> str:
    return f"""
        WITH {difference(members)}, inserted AS (
            INSERT INTO ledger_entry ({_COLUMNS}, reason, settlement_pass, run_id)
            SELECT organization_id, %(month)s::date, currency, %(origin)s::date,
                coalesce(last_sequence + 1, 0), {", ".join(AMOUNTS)},
                CASE WHEN is_new AND %(month)s::date = %(origin)s::date THEN NULL
                    ELSE 'recomputed minus posted' END,
                %(pass)s::integer, %(run_id)s::text
            FROM difference
            WHERE differs OR (is_new AND %(month)s::date = %(origin)s::date)
            ORDER BY organization_id, currency
            ON CONFLICT ON CONSTRAINT ledger_entry_pkey DO NOTHING
            RETURNING reason IS NULL AS is_new
        )
        SELECT (SELECT count(*) FROM inserted WHERE is_new) AS rows_new,
            (SELECT count(*) FROM inserted WHERE NOT is_new) AS rows_adjusted,
            (SELECT count(*) FROM posted) AS rows_existing
    """


_POST_DIFFERENCE = _post_difference(IN_RANGE)
_POST_DIFFERENCE_OF_LISTED = _post_difference(IN_LIST)


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
    return Posted(*connection.exec_driver_sql(statement, parameters).one())
