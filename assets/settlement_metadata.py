"""How a settlement looks in the UI: figures, tables and the months so far."""

from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from assets.month_chart import month_chart
from assets.tables import table
from ticketflow_orch.formatting.columns import Column, amounts, counts
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import why_nothing_is_posted
from ticketflow_orch.settlement import SettlementResult
from ticketflow_orch.settlement.late_report import LateAdjustment, late_in_pass
from ticketflow_orch.settlement.preview import DryRun, WouldPost, WouldPostTotal
from ticketflow_orch.settlement.queries import (
    MonthTotal,
    ParkedOrganization,
    TopOrganization,
    month_totals,
    top_organizations,
)
from ticketflow_orch.settlement.shards import Hand

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
        metadata["parked organizations"] = table(_PARKED, result.parked)
    if result.settlement is not None and not result.changed_nothing:
        late = late_in_pass(connection, result.settlement, LATE_ROWS)
        if late.listed:
            metadata["came late"] = table(_LATE, late.listed)
        if late.more:
            metadata["came late, not listed"] = late.more
    metadata["totals"] = table(_TOTALS, totals)
    metadata |= months_so_far(connection, result.month)
    if totals:
        top = top_organizations(connection, result.month, result.month, limit=max(3, TOP_ROWS // len(totals)))
        metadata["top organizations"] = table(_TOP, top)
    if result.hands:
        metadata["who did what"] = table(HANDS, result.hands)
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
        metadata["would be parked"] = table(_WOULD_BE_PARKED, rehearsed.would_be_parked)
    if rehearsed.totals:
        metadata["would be posted"] = table(_WOULD_POST_TOTALS, rehearsed.totals)
        metadata["first entries"] = table(_WOULD_POST, rehearsed.listed)
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
_TOTALS: tuple[Column[MonthTotal], ...] = (
    Column("currency", lambda total: total.currency),
    *amounts("net", "captures", "refunds", "chargebacks", "fees", "commission"),
    Column("tax", lambda total: written_out(total.commission_tax, total.exponent), "amount"),
    *counts("organizations"),
)
_TOP: tuple[Column[TopOrganization], ...] = (
    Column("currency", lambda top: top.currency),
    Column("organization", lambda top: top.name),
    *amounts("net", "captures", "refunds"),
    Column("reference", lambda top: top.external_ref),
)
HANDS: tuple[Column[Hand], ...] = (
    Column("run", lambda hand: hand.run_id),
    Column("worker", lambda hand: hand.worker),
    *counts("chunks", "organizations"),
    Column("seconds", lambda hand: f"{hand.seconds:.1f}", "amount"),
)
_PARKED: tuple[Column[ParkedOrganization], ...] = (
    Column("organization", lambda parked: parked.external_ref),
    Column("month", lambda parked: str(parked.month)),
    Column("why", lambda parked: parked.why),
)
_WOULD_BE_PARKED: tuple[Column[tuple[str, Month, str]], ...] = (
    Column("organization", lambda parked: parked[0]),
    Column("month", lambda parked: str(parked[1])),
    Column("why", lambda parked: parked[2]),
)
_LATE: tuple[Column[LateAdjustment], ...] = (
    Column("organization", lambda late: late.external_ref),
    Column("currency", lambda late: late.currency),
    Column("about", lambda late: str(late.origin)),
    Column("net before", lambda late: written_out(late.old, late.exponent), "amount"),
    Column("net now", lambda late: written_out(late.new, late.exponent), "amount"),
    *amounts("difference"),
    Column("name", lambda late: late.name),
)
_WOULD_POST_TOTALS: tuple[Column[WouldPostTotal], ...] = (
    Column("about", lambda total: str(total.origin)),
    Column("currency", lambda total: total.currency),
    *amounts("net"),
    *counts("settlements", "adjustments"),
)
_WOULD_POST: tuple[Column[WouldPost], ...] = (
    Column("organization", lambda entry: entry.external_ref),
    Column("about", lambda entry: str(entry.origin)),
    Column("currency", lambda entry: entry.currency),
    Column("net before", lambda entry: written_out(entry.posted, entry.exponent), "amount"),
    Column("net then", lambda entry: written_out(entry.posted + entry.difference, entry.exponent), "amount"),
    *amounts("difference"),
    Column("kind", lambda entry: "settlement" if entry.is_settlement else "adjustment"),
)
