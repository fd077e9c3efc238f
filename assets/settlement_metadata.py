"""How a settlement looks in the UI: figures, tables and the months so far."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ticketflow_orch.money import bars, written_out
from ticketflow_orch.months import Month
from ticketflow_orch.settlement import SettlementResult
from ticketflow_orch.settlement.report import MonthTotal, ParkedOrganization, month_totals, top_organizations

MONTHS_SHOWN = 24

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
    """The metadata of one materialization."""
    totals = month_totals(connection, result.month, result.month)
    metadata: dict[str, Any] = {
        "summary": dg.MetadataValue.md(_summary(result)),
        "organizations": sum(total.organizations for total in totals),
        "rows new": result.rows_new,
        "rows adjusted": result.rows_adjusted,
        "rows existing": result.rows_existing,
        "parked": len(result.parked),
        "chunks": result.chunks,
        "workers": result.workers,
        "seconds": round(result.seconds, 3),
        "rows a second": round(result.rows / result.seconds),
        "totals": dg.MetadataValue.table(_totals_table(totals), _TOTALS_SCHEMA),
        "top organizations": dg.MetadataValue.table(_top_table(connection, result.month), _TOP_SCHEMA),
        "months so far": dg.MetadataValue.md(months_chart(connection, result.month)),
    }
    if result.settlement is not None:
        metadata["cutoff"] = dg.MetadataValue.timestamp(result.settlement.cutoff)
    if result.parked:
        metadata["parked organizations"] = dg.MetadataValue.table(_parked_table(result.parked), _PARKED_SCHEMA)
    # Whole minor units, so that the asset's plots show the months exactly.
    metadata |= {f"net {total.currency} (minor units)": total.net for total in totals}
    return metadata


def months_chart(connection: Connection, last: Month) -> str:
    """Markdown: per currency, a bar of net for each month up to `last`."""
    totals = month_totals(connection, Month(1970, 1), last)
    by_currency = groupby(sorted(totals, key=attrgetter("currency", "month")), key=attrgetter("currency"))
    return "\n\n".join(_currency_chart(currency, list(group)[-MONTHS_SHOWN:]) for currency, group in by_currency)


def _currency_chart(currency: str, totals: list[MonthTotal]) -> str:
    lines = [f"**Net, {currency}**", "", "| month | | net |", "|---|---|---:|"]
    for total, bar in zip(totals, bars(total.net for total in totals), strict=True):
        lines.append(f"| {total.month} | {bar} | {written_out(total.net, total.exponent)} |")
    return "\n".join(lines)


def _summary(result: SettlementResult) -> str:
    if result.settlement is None:
        return f"**{result.month} is closed.** Nothing was posted; what comes late is adjusted in the first open month."
    if result.changed_nothing:
        return f"**Nothing came late.** All {result.rows_existing:,} rows of {result.month} are as they should be."
    parts = [f"{result.rows_new:,} rows settled", f"{result.rows_adjusted:,} adjusted"]
    if result.parked:
        parts.append(f"**{len(result.parked)} organizations parked**")
    return f"{result.month}: {', '.join(parts)} in {result.seconds:.1f} s."


_TOTALS_SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn(name)
        for name in (
            "currency",
            "organizations",
            "captures",
            "refunds",
            "chargebacks",
            "fees",
            "commission",
            "tax",
            "net",
        )
    ]
)
_TOP_SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn(name)
        for name in ("currency", "organization", "name", "captures", "refunds", "commission", "net")
    ]
)
_PARKED_SCHEMA = dg.TableSchema(columns=[dg.TableColumn(name) for name in ("organization", "month", "why")])


def _totals_table(totals: Iterable[MonthTotal]) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "currency": total.currency,
                "organizations": total.organizations,
                "captures": written_out(total.captures, total.exponent),
                "refunds": written_out(total.refunds, total.exponent),
                "chargebacks": written_out(total.chargebacks, total.exponent),
                "fees": written_out(total.fees, total.exponent),
                "commission": written_out(total.commission, total.exponent),
                "tax": written_out(total.commission_tax, total.exponent),
                "net": written_out(total.net, total.exponent),
            }
        )
        for total in totals
    ]


def _top_table(connection: Connection, month: Month) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "currency": top.currency,
                "organization": top.external_ref,
                "name": top.name,
                "captures": written_out(top.captures, top.exponent),
                "refunds": written_out(top.refunds, top.exponent),
                "commission": written_out(top.commission, top.exponent),
                "net": written_out(top.net, top.exponent),
            }
        )
        for top in top_organizations(connection, month, month)
    ]


def _parked_table(parked: Iterable[ParkedOrganization]) -> list[dg.TableRecord]:
    return [
        dg.TableRecord({"organization": item.external_ref, "month": str(item.month), "why": item.why})
        for item in parked
    ]
