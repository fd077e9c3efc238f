"""How a settlement looks in the UI: figures, tables and the months so far."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from assets.month_chart import month_chart
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import why_nothing_is_posted
from ticketflow_orch.settlement import SettlementResult
from ticketflow_orch.settlement.late_adjustments import LateAdjustment, late_in_pass
from ticketflow_orch.settlement.preview import DryRun, WouldPost, WouldPostTotal
from ticketflow_orch.settlement.queries import (
    MonthTotal,
    ParkedOrganization,
    TopOrganization,
    month_totals,
    top_organizations,
)

# Shared by the currencies of a month, of which each has three at least.
TOP_ROWS = 12
LATE_ROWS = 50

LEDGER_COLUMNS = dg.TableSchema(
    columns=[
        dg.TableColumn("organization_id", "bigint", "whose entry it is"),
        dg.TableColumn("month", "date", "the month it is posted in"),
        dg.TableColumn("currency", "char(3)", "ISO 4217"),
        dg.TableColumn("origin_month", "date", "the month it is about; earlier than `month` for late adjustments"),
        dg.TableColumn("sequence", "integer", "0 is the settlement itself, 1, 2, … adjustments"),
        dg.TableColumn("captures", "bigint", "minor units"),
        dg.TableColumn("refunds", "bigint", "minor units, negative"),
        dg.TableColumn("chargebacks", "bigint", "minor units; reversals included"),
        dg.TableColumn("fees", "bigint", "minor units; fees and manual entries"),
        dg.TableColumn("commission", "bigint", "minor units, rounded once per rate"),
        dg.TableColumn("commission_tax", "bigint", "minor units, rounded once per rate"),
        dg.TableColumn("net", "bigint", "captures + refunds + chargebacks + fees − commission − commission_tax"),
        dg.TableColumn("reason", "text", "why an adjustment was posted"),
        dg.TableColumn("settlement_pass", "integer", "the pass of the month that posted it"),
        dg.TableColumn("posted_at", "timestamptz", "when, by the database's clock"),
        dg.TableColumn("run_id", "text", "the Dagster run that posted it"),
    ]
)


def settlement_metadata(connection: Connection, result: SettlementResult) -> dict[str, Any]:
    """The metadata of one materialization, in the order in which people ask: what came of it, then how it went."""
    totals = month_totals(connection, result.month, result.month)
    why_nothing = why_nothing_is_posted(connection, result.month) if result.settlement is None else None
    metadata: dict[str, Any] = {"summary": dg.MetadataValue.md(why_nothing or _summary(result))}
    if result.parked:
        metadata["parked organizations"] = _table(_PARKED, map(_parked_cells, result.parked))
    if result.settlement is not None and not result.changed_nothing:
        late = late_in_pass(connection, result.settlement, LATE_ROWS)
        if late.listed:
            metadata["came late"] = _table(_LATE, map(_late_cells, late.listed))
        if late.more:
            metadata["came late, not listed"] = late.more
    metadata["totals"] = _table(_TOTALS, map(_total_cells, totals))
    metadata |= months_so_far(connection, result.month)
    if totals:
        top = top_organizations(connection, result.month, result.month, limit=max(3, TOP_ROWS // len(totals)))
        metadata["top organizations"] = _table(_TOP, map(_top_cells, top))
    metadata |= {
        "organizations": sum(total.organizations for total in totals),
        "rows new": result.rows_new,
        "rows adjusted": result.rows_adjusted,
        "rows existing": result.rows_existing,
        "parked": len(result.parked),
        "chunks": result.chunks,
        "workers": result.workers,
        "seconds": round(result.seconds, 3),
        "rows a second": round(result.rows / result.seconds),
    }
    if result.settlement is not None:
        metadata["cutoff"] = dg.MetadataValue.timestamp(result.settlement.cutoff_at)
    # Whole minor units, so that the asset's plots show the months exactly.
    metadata |= {f"net {total.currency} (minor units)": total.net for total in totals}
    return metadata


def dry_run_metadata(rehearsed: DryRun, file: Path | None) -> dict[str, Any]:
    """The metadata of a dry run: what would be posted, as sums and as the first entries."""
    metadata: dict[str, Any] = {"summary": dg.MetadataValue.md(_dry_run_summary(rehearsed))}
    if rehearsed.would_be_parked:
        rows = ((name, str(month), why) for name, month, why in rehearsed.would_be_parked)
        metadata["would be parked"] = _table(_PARKED, rows)
    if rehearsed.totals:
        metadata["would be posted"] = _table(_WOULD_POST_TOTALS, map(_would_post_total_cells, rehearsed.totals))
        metadata["first entries"] = _table(_WOULD_POST, map(_would_post_cells, rehearsed.listed))
    metadata |= {"entries": rehearsed.entries, "entries not listed": rehearsed.more}
    if file is not None:
        metadata["file"] = dg.MetadataValue.path(file.absolute())
    return metadata | {"cutoff": dg.MetadataValue.timestamp(rehearsed.at)}


def months_so_far(connection: Connection, last: Month) -> dict[str, dg.MarkdownMetadataValue]:
    """Per currency that `last` has, a chart of the net of each month up to it."""
    totals = month_totals(connection, Month(1970, 1), last)
    by_currency = groupby(sorted(totals, key=attrgetter("currency", "month")), key=attrgetter("currency"))
    charts = {}
    for currency, group in by_currency:
        months = list(group)
        if months[-1].month == last:
            caption = written_out(months[-1].net, months[-1].exponent)
            chart = month_chart({total.month: total.net for total in months}, caption)
            charts[f"net {currency}, months so far"] = dg.MetadataValue.md(chart)
    return charts


def _summary(result: SettlementResult) -> str:
    if result.changed_nothing and not result.parked:
        return f"**Nothing came late.** Nothing was posted in {result.month}."
    parts = [f"{counted(result.rows_new, 'row')} settled"] if result.rows_new else []
    if result.rows_adjusted:
        parts.append(f"{result.rows_adjusted:,} adjusted")
    if result.parked:
        parts.append(f"**{counted(len(result.parked), 'organization')} parked**")
    return f"{result.month}: {', '.join(parts)} in {result.seconds:.1f} s."


def _dry_run_summary(rehearsed: DryRun) -> str:
    beginning = "**Dry run: nothing was posted.**"
    if rehearsed.why_nothing is not None:
        return f"{beginning} {rehearsed.why_nothing}"
    if not rehearsed.entries:
        return f"{beginning} The ledger of {rehearsed.month} is as it should be, so nothing would be."
    settlements = sum(total.settlements for total in rehearsed.totals)
    return (
        f"{beginning} In {rehearsed.month} a settlement would now post {counted(settlements, 'settlement row')} and "
        f"{counted(rehearsed.entries - settlements, 'adjustment')}."
    )


# Net comes before what it is made of: the page cuts wide tables off at the right.
_TOTALS = ("currency", "net", "captures", "refunds", "chargebacks", "fees", "commission", "tax", "organizations")
_TOP = ("currency", "organization", "net", "captures", "refunds", "reference")
_PARKED = ("organization", "month", "why")
_LATE = ("organization", "currency", "about", "net before", "net now", "difference", "name")
_WOULD_POST_TOTALS = ("about", "currency", "net", "settlements", "adjustments")
_WOULD_POST = ("organization", "about", "currency", "net before", "net then", "difference", "kind")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | int]]) -> dg.TableMetadataValue:
    records = [dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, dg.TableSchema(columns=[dg.TableColumn(name) for name in columns]))


def _total_cells(total: MonthTotal) -> Sequence[str | int]:
    amounts = (
        total.net, total.captures, total.refunds, total.chargebacks, total.fees, total.commission, total.commission_tax,
    )  # fmt: skip
    return total.currency, *(written_out(amount, total.exponent) for amount in amounts), total.organizations


def _top_cells(top: TopOrganization) -> Sequence[str | int]:
    amounts = (top.net, top.captures, top.refunds)
    return top.currency, top.name, *(written_out(amount, top.exponent) for amount in amounts), top.external_ref


def _late_cells(late: LateAdjustment) -> Sequence[str | int]:
    amounts = (written_out(amount, late.exponent) for amount in (late.old, late.new, late.difference))
    return late.external_ref, late.currency, str(late.origin), *amounts, late.name


def _would_post_total_cells(total: WouldPostTotal) -> Sequence[str | int]:
    net = written_out(total.net, total.exponent)
    return str(total.origin), total.currency, net, total.settlements, total.adjustments


def _would_post_cells(entry: WouldPost) -> Sequence[str | int]:
    nets = (entry.posted, entry.posted + entry.difference, entry.difference)
    amounts = (written_out(amount, entry.exponent) for amount in nets)
    kind = "settlement" if entry.is_settlement else "adjustment"
    return entry.external_ref, str(entry.origin), entry.currency, *amounts, kind


def _parked_cells(parked: ParkedOrganization) -> Sequence[str | int]:
    return parked.external_ref, str(parked.month), parked.why
