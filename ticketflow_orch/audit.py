"""The settlement's invariants as questions to the database: read-only, each answered for a month or for the schema.

Integrity is another question than lateness: what no pass has read yet is not a fault of the month.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from ticketflow_orch.months import Month, months_between
from ticketflow_orch.settlement.late_movements import read_to
from ticketflow_orch.settlement.passes import zones_in_use
from ticketflow_orch.settlement.posting import LARGEST_ID, difference, month_parameters, recomputed
from ticketflow_orch.settlement.windows import month_windows

EXAMPLES = 20

_GUARDS = frozenset(
    {
        "ledger_entry_append_only", "ledger_entry_period_open", "money_movement_append_only", "money_movement_recorded",
        "money_movement_reversal", "money_movement_undo_only", "organization_zone_and_currency",
        "organization_never_deleted", "settlement_period_transition", "settlement_window_fixed",
        "settlement_window_meets",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that breaks an invariant: the organization's reference, the currency, and what is wrong in words."""

    organization: str
    currency: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """How often a month breaks an invariant, with the first few breaches."""

    month: Month
    count: int
    examples: tuple[Breach, ...]


def settled_months(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and not closed: those whose entries may still be wrong and may still be mended."""
    days = connection.execute(
        text("SELECT month FROM settlement_period WHERE state IN ('SETTLED', 'CLOSING') ORDER BY month")
    )
    return tuple(Month.of_day(day) for day in days.scalars())


def months_with_parked(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and not closed, and those, closed or not, in which somebody is still parked."""
    days = connection.execute(text("SELECT DISTINCT month FROM parked_organization WHERE resolved_at IS NULL"))
    return tuple(sorted({*settled_months(connection), *map(Month.of_day, days.scalars())}))


def organizations_without_row(connection: Connection, month: Month) -> Finding:
    """Organizations active in `month` that lack their settlement row in their own currency and are not parked."""
    rows = connection.execute(_WITHOUT_ROW, _month(month)).all()
    return _finding(month, [Breach(row.external_ref, row.currency, "has no settlement row") for row in rows], rows)


def dishonest_organizations(connection: Connection, month: Month) -> Finding:
    """Organizations whose entries about `month`, in whatever month posted, are not what their movements come to.

    Each is recomputed up to where it was read: the month's `read_to`, or the cutoff of a pass that did it since.
    """
    parameters = _recomputing(connection, month)
    if parameters is None:
        return Finding(month, 0, ())
    rows = connection.execute(_DISHONEST, parameters | _month(month)).all()
    breaches = [
        Breach(row.external_ref, row.currency, f"posted {row.posted_net}, recomputed {row.posted_net + row.net}")
        for row in rows
    ]
    return _finding(month, breaches, rows)


def parked_in(connection: Connection, month: Month) -> Finding:
    """Organizations that are parked in `month`, with why."""
    rows = connection.execute(_PARKED, _month(month)).all()
    return _finding(month, [Breach(row.external_ref, row.currency, row.why) for row in rows], rows)


def missing_guards(connection: Connection) -> tuple[str, ...]:
    """What the ledger's protection lacks, in words: its key valid, its triggers there and switched on."""
    key = connection.execute(
        text("""
            SELECT count(*) FROM pg_constraint JOIN pg_index ON indexrelid = conindid
            WHERE conname = 'ledger_entry_pkey' AND conrelid = CAST('ledger_entry' AS regclass) AND contype = 'p'
                AND indisvalid AND indisready AND NOT condeferrable
        """)
    ).scalar_one()
    missing = missing_triggers(connection, _GUARDS)
    return missing if key else ("the ledger's primary key is missing or not valid", *missing)


def missing_triggers(connection: Connection, wanted: Set[str]) -> tuple[str, ...]:
    """Which of the triggers called `wanted` are missing or switched off, in words."""
    enabled = set(
        connection.execute(
            text("SELECT tgname FROM pg_trigger WHERE tgenabled IN ('O', 'A') AND NOT tgisinternal")
        ).scalars()
    )
    return tuple(f"trigger {name} is missing or switched off" for name in sorted(wanted - enabled))


def rounding_residue(connection: Connection, month: Month) -> dict[str, str]:
    """Per currency, by how much the posted commission and tax of `month` differ from the exact ones, in minor units.

    At most half a unit a line and rate; listed, never posted.
    """
    parameters = _recomputing(connection, month)
    if parameters is None:
        return {}
    return {row.currency: str(row.residue) for row in connection.execute(_RESIDUE, parameters)}


def _recomputing(connection: Connection, month: Month) -> dict[str, Any] | None:
    """What `recomputed` takes to repeat the month as it was read, without the parked; None before it was."""
    cutoff = read_to(connection, [month])[month]
    if cutoff == 0:
        return None
    windows = month_windows(connection, [month], zones_in_use(connection)).get(month, {})
    parked = connection.execute(
        text("""
            SELECT organization_id FROM parked_organization
            WHERE month = :month AND error IS NOT NULL AND resolved_at IS NULL
        """),
        _month(month),
    ).scalars()
    last = connection.execute(text("SELECT max(month) FROM settlement_period")).scalar_one()
    posting = months_between(month, max(month, Month.of_day(last)))
    return month_parameters(month, windows, cutoff) | {
        "left_out": list(parked),
        "posting_months": [each.first_day for each in posting],
    }


def _month(month: Month) -> dict[str, object]:
    return {"month": month.first_day, "next_month": month.next().first_day, "examples": EXAMPLES}


def _finding(month: Month, breaches: Sequence[Breach], rows: Sequence[Row[Any]]) -> Finding:
    return Finding(month, rows[0].breaches if rows else 0, tuple(breaches))


_WITHOUT_ROW = text("""
    SELECT external_ref, currency, count(*) OVER () AS breaches
    FROM organization
    WHERE joined_on < CAST(:next_month AS date) AND (left_on IS NULL OR left_on >= CAST(:month AS date))
        AND NOT EXISTS (
            SELECT FROM ledger_entry AS entry
            WHERE (entry.month, entry.organization_id, entry.currency, entry.origin_month, entry.sequence)
                = (CAST(:month AS date), organization.id, organization.currency, CAST(:month AS date), 0))
        AND NOT EXISTS (
            SELECT FROM parked_organization AS parked
            WHERE parked.organization_id = organization.id AND parked.month = :month AND error IS NOT NULL
                AND resolved_at IS NULL)
    ORDER BY id LIMIT :examples
""")

# A pass that was given up, or that is still running, has done some organizations beyond what counts as read.
_AHEAD = f"""
    ahead AS MATERIALIZED (
        SELECT low_id, coalesce(high_id, {LARGEST_ID}) AS high_id, cutoff
        FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
        WHERE chunk.origin_month = CAST(:origin AS date) AND chunk.state = 'DONE' AND cutoff > CAST(:cutoff AS bigint)
    )"""
_AS_READ = """coalesce(
    (SELECT max(ahead.cutoff) FROM ahead WHERE organization.id BETWEEN ahead.low_id AND ahead.high_id),
    CAST(:cutoff AS bigint))"""

_DISHONEST = text(f"""
    WITH {_AHEAD}, {difference(cutoff=_AS_READ)}
    SELECT external_ref, difference.currency, net, (
            SELECT coalesce(sum(entry.net), 0) FROM ledger_entry AS entry
            WHERE entry.organization_id = difference.organization_id AND entry.currency = difference.currency
                AND entry.month = ANY (CAST(:posting_months AS date[])) AND entry.origin_month = CAST(:origin AS date)
        ) AS posted_net,
        count(*) OVER () AS breaches
    FROM difference JOIN organization ON organization.id = organization_id
    WHERE differs
    ORDER BY organization_id LIMIT :examples
""")

_RESIDUE = text(f"""
    WITH {recomputed()}
    SELECT currency, trim_scale(sum(
        round(exact_commission) - exact_commission
        + round(round(exact_commission) * commission_tax_bps * 0.0001)
        - round(exact_commission) * commission_tax_bps * 0.0001)) AS residue
    FROM line
    GROUP BY currency
""")

_PARKED = text("""
    SELECT external_ref, currency, coalesce(error, reason) AS why, count(*) OVER () AS breaches
    FROM parked_organization JOIN organization ON organization.id = organization_id
    WHERE month = :month AND resolved_at IS NULL
    ORDER BY organization_id LIMIT :examples
""")
