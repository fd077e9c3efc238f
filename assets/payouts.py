"""The asset that pays closed months: requests every payout, shows what became of them, and its checks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from assets.month_chart import month_chart
from assets.month_loop import asked, each_month
from assets.partitions import months
from assets.settlement_checks import judged, looked
from assets.tables import table
from resources import ClockResource, DatabaseResource
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.formatting.columns import Column, counts
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.delivery.configuration import read_delivery
from ticketflow_orch.payouts import PayoutRules, PayoutsLeftOutError, PayoutsRequested, request_payouts
from ticketflow_orch.payouts.invariants import in_doubt, not_as_payable
from ticketflow_orch.payouts.queries import CurrencyPaid, paid_by_currency, requested_so_far
from ticketflow_orch.settings import settings

PAYOUT_COLUMNS = dg.TableSchema(
    columns=[
        dg.TableColumn("public_id", "uuid", "our reference at the payment provider"),
        dg.TableColumn("organization_id", "bigint", "who is paid"),
        dg.TableColumn("currency", "char(3)", "ISO 4217"),
        dg.TableColumn("month", "date", "the closed month whose balance it pays"),
        dg.TableColumn("amount", "bigint", "minor units; what the balance says is payable"),
        dg.TableColumn("state", "text", "HELD, REQUESTED, CONFIRMED, REJECTED, RETURNED or IN_DOUBT"),
        dg.TableColumn("reason", "text", "why it is held, was rejected, came back or is in doubt"),
        dg.TableColumn("provider_ref", "text", "the provider's own reference"),
        dg.TableColumn("first_attempt_at", "timestamptz", "when it was sent for the first time"),
        dg.TableColumn("answered_at", "timestamptz", "when the provider, or a person, confirmed or rejected it"),
        dg.TableColumn("returned_month", "date", "the month with whose balance the money came back"),
        dg.TableColumn("decided_by", "text", "who held, released or settled it by hand"),
        dg.TableColumn("run_id", "text", "the Dagster run that requested it"),
        dg.TableColumn("anomalies_to", "bigint", "it was held for anomalies among movements below this id"),
    ]
)


def _part(name: str, amount: Callable[[CurrencyPaid], int]) -> Column[CurrencyPaid]:
    """How much of it is so; empty where nothing is."""

    def cell(total: CurrencyPaid) -> str:
        return written_out(amount(total), total.exponent) if amount(total) else ""

    return Column(name, cell, "amount")


# What people ask first comes first: the page cuts wide tables off at the right.
_TOTALS: tuple[Column[CurrencyPaid], ...] = (
    Column("currency", lambda total: total.currency),
    Column("total", lambda total: written_out(total.amount, total.exponent), "amount"),
    *counts("payouts"),
    _part("held", lambda total: total.held),
    _part("in progress", lambda total: total.waiting),
    _part("confirmed", lambda total: total.confirmed),
    _part("came back", lambda total: total.back),
    _part("in doubt", lambda total: total.in_doubt),
)


@dg.asset(
    partitions_def=months,
    deps=[dg.AssetKey("closed_books")],
    # A run for all months of a backfill, in their order: each is reviewed beside the ones before.
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool="payouts",
    group_name="settlement",
    owners=["team:finance"],
    kinds={"postgres"},
    tags={"domain": "settlement"},
    metadata={"dagster/column_schema": PAYOUT_COLUMNS, "dagster/table_name": "payout"},
)
def payouts(
    context: dg.AssetExecutionContext, database: DatabaseResource, clock: ClockResource
) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization]:  # type: ignore[type-arg]
    """What a closed month owes each organization, requested from the payment provider once, through the outbox.

    Materializing a month again pays nobody again. A month whose books are not closed is refused; months before
    the first that an organization is paid for (`ticketflow payouts from`) pay it nothing. A payout that cannot be
    written is left out: the others are requested, and the run fails, naming it, until it is right.
    """
    with database.engine("payouts", connections=2, patience=PATIENCE) as engine:

        def pay(month: Month) -> Mapping[str, Any]:
            # It refuses a route that could pay twice; nothing is to be requested then.
            read_delivery(settings())
            rules = PayoutRules.configured(settings(), clock.now())
            result = request_payouts(engine, month, rules, context.run.run_id)
            if result.anomalous:
                context.log.warning(f"{month}: {counted(result.anomalous, 'payout')} held for anomalies")
            for held in (one.held for one in result.currencies if one.held):
                context.log.warning(f"{month}: payouts are held, {held}")
            return asked(engine, lambda connection: payouts_metadata(connection, result))

        yield from each_month(context, engine, pay, own_faults=(PayoutsLeftOutError,))


def payouts_metadata(connection: Connection, result: PayoutsRequested) -> dict[str, Any]:
    """The metadata of one month: what it pays by currency and how far that is, beside the months before."""
    metadata: dict[str, Any] = {"summary": dg.MetadataValue.md(_summary(result))}
    totals = paid_by_currency(connection, result.month)
    if totals:
        metadata["payouts"] = table(_TOTALS, totals)
        so_far = requested_so_far(connection, result.month)
        for total in totals:
            caption = written_out(total.amount, total.exponent)
            chart = month_chart(so_far[total.currency], caption)
            metadata[f"requested {total.currency}, months so far"] = dg.MetadataValue.md(chart)
    metadata |= {"requested": result.requested, "held": result.held, "existing": result.existing}
    # Whole minor units, so that the asset's plots show the months exactly.
    metadata |= {f"requested {total.currency} (minor units)": total.amount for total in totals}
    return metadata | {f"paid out {total.currency} (minor units)": total.confirmed for total in totals}


def _summary(result: PayoutsRequested) -> str:
    if result.why_nobody is not None:
        return f"**{result.why_nobody}**"
    parts = [f"{counted(result.requested, 'payout')} requested"] if result.requested else []
    if result.held:
        parts.append(
            f"**{result.held:,} held**: `ticketflow payouts list --month {result.month} --state held` says why, "
            f"`ticketflow payouts release --month {result.month}` sends what was held for review"
        )
    if result.anomalous:
        parts.append(f"**{result.anomalous:,} held for anomalies**: `ticketflow anomalies list` shows them")
    if result.existing:
        parts.append(f"{result.existing:,} were there before")
    return f"{result.month}: {', '.join(parts) or 'nobody is owed anything'}."


@dg.asset_check(
    asset=payouts,
    name="paid_what_is_payable",
    description="Every balance with something payable has its payout, of that amount, and nobody else has one.",
)
def paid_what_is_payable(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether the closed months that pay anybody, up to the last one with payouts, pay what they owe."""
    return judged(looked(database, "paid_what_is_payable", not_as_payable))


@dg.asset_check(
    asset=payouts,
    name="nothing_in_doubt",
    description="Of every payout it is known whether the money left; `ticketflow payouts resolve` settles the others.",
)
def nothing_in_doubt(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether any payout of any month waits for a person to ask the provider."""
    return judged(looked(database, "nothing_in_doubt", in_doubt))


PAYOUT_CHECKS = [paid_what_is_payable, nothing_in_doubt]
