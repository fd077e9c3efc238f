"""The asset that closes months: writes what every organization is owed, freezes the month, shows it; and its checks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from assets.month_chart import month_chart
from assets.month_loop import asked, each_month, launched_by
from assets.monthly_settlement import monthly_settlement
from assets.partitions import months
from assets.settlement_checks import audited, judged, looked
from assets.tables import table
from resources import ClockResource, DatabaseResource
from ticketflow_orch.auditing import INVARIANTS, Scope
from ticketflow_orch.closing import ClosedBooks, ClosingOptions, IncompleteClosingError, close_month, invariants
from ticketflow_orch.closing.columns import BALANCES
from ticketflow_orch.closing.queries import payable_so_far
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.formatting.columns import Column, picked
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import closed_months
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.invariants import Finding
from ticketflow_orch.settlement.queries import ParkedOrganization

BALANCE_COLUMNS = dg.TableSchema(
    columns=[
        dg.TableColumn("organization_id", "bigint", "whose balance it is"),
        dg.TableColumn("currency", "char(3)", "ISO 4217"),
        dg.TableColumn("month", "date", "the closed month"),
        dg.TableColumn("previous_month", "date", "the balance before; months between were spent parked, or idle"),
        dg.TableColumn(
            "opening", "bigint", "minor units; the closing of the balance before, or what was brought along"
        ),
        dg.TableColumn("net", "bigint", "minor units; what was posted since the balance before"),
        dg.TableColumn("returned", "bigint", "minor units; payouts that were rejected or sent back"),
        dg.TableColumn(
            "settled_elsewhere", "bigint", "minor units; what is about months before payouts_from, so never paid"
        ),
        dg.TableColumn("due", "bigint", "opening + net + returned − settled elsewhere"),
        dg.TableColumn("payable", "bigint", "due where it reaches the currency's minimum and payouts are on, else 0"),
        dg.TableColumn("closing", "bigint", "due − payable, the next opening"),
        dg.TableColumn("payouts_from", "date", "the first month that was paid when it was written; empty: none was"),
        dg.TableColumn("knows_history", "boolean", "false: from before settled_elsewhere was kept"),
    ]
)
# What people ask first comes first: the page cuts wide tables off at the right.
_TOTALS = picked(
    BALANCES,
    "currency", "payable", "closing", "opening", "net", "returned", "settled elsewhere", "due", "organizations",
    "paying", "carrying",
)  # fmt: skip
_PARKED: tuple[Column[ParkedOrganization], ...] = (
    Column("organization", lambda parked: parked.external_ref),
    Column("since month", lambda parked: str(parked.month)),
    Column("why", lambda parked: parked.why),
)


@dg.asset(
    partitions_def=months,
    deps=[monthly_settlement],
    # A run for all months of a backfill: they are closed in order, each committed by itself.
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool="books",
    group_name="settlement",
    owners=["team:finance"],
    kinds={"postgres"},
    tags={"domain": "settlement"},
    metadata={"dagster/column_schema": BALANCE_COLUMNS, "dagster/table_name": "organization_balance"},
)
def closed_books(
    context: dg.AssetExecutionContext, database: DatabaseResource, clock: ClockResource
) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization]:  # type: ignore[type-arg]
    """What every organization is owed at the end of a month, carried from the month before; closed for good.

    Nothing is posted into a closed month any more: corrections are adjustments in the first month that is not closed.
    Months are closed in order. One that is not settled, or whose ledger is not as it should be, is refused by name; an
    organization that is parked gets no balance, and catches up when it is not parked any more. Closing a month that is
    closed changes nothing.
    """
    options = ClosingOptions(chunk_size=settings().chunk_size, parked_limit=settings().parked_limit)
    with database.engine("closed_books", connections=2, patience=PATIENCE) as engine:

        def close(month: Month) -> Mapping[str, Any]:
            result = close_month(
                engine,
                month,
                now=clock.now(),
                first_month=asked(engine, read_installation).first_month,
                closed_by=launched_by(context.run.tags),
                run_id=context.run.run_id,
                options=options,
            )
            context.log.info(f"{month} is closed: {result.rows_new} balances were written.")
            return asked(engine, lambda connection: books_metadata(connection, result))

        yield from each_month(context, engine, close, refusals=(TicketflowError, IncompleteClosingError))


def books_metadata(connection: Connection, result: ClosedBooks) -> dict[str, Any]:
    """The metadata of one closed month: what is owed by currency, beside the months before, and who closed it."""
    metadata: dict[str, Any] = {"summary": dg.MetadataValue.md(_summary(result))}
    if result.parked:
        metadata["parked organizations"] = table(_PARKED, result.parked)
    metadata["balances"] = table(_TOTALS, result.balances)
    so_far = payable_so_far(connection, result.month)
    for total in result.balances:
        chart = month_chart(so_far[total.currency], written_out(total.payable, total.exponent))
        metadata[f"payable {total.currency}, months so far"] = dg.MetadataValue.md(chart)
    metadata |= {
        "balances written": result.rows_new,
        "parked": len(result.parked),
        "closed by": result.closed_by,
        "database role": result.closed_role,
        "closed at": dg.MetadataValue.timestamp(result.closed_at),
        "seconds": round(result.seconds, 3),
    }
    # Whole minor units, so that the asset's plots show the months exactly.
    return metadata | {f"payable {total.currency} (minor units)": total.payable for total in result.balances}


def _summary(result: ClosedBooks) -> str:
    if result.found_closed:
        return f"**{result.month} was closed already**, by {result.closed_by}; nothing was changed."
    balances = sum(total.organizations for total in result.balances)
    paying = sum(total.paying for total in result.balances)
    carrying = sum(total.carrying for total in result.balances)
    parked = f", **{counted(len(result.parked), 'organization')} parked**" if result.parked else ""
    written = f"{counted(balances, 'balance')}: {paying:,} to be paid, {carrying:,} carried on"
    return f"**{result.month} is closed.** {written}{parked}."


def _books_check(
    name: str, question: Callable[[Connection, Month], Finding], description: str
) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=closed_books, name=name, description=description)
    def check(database: DatabaseResource) -> dg.AssetCheckResult:
        def judge(connection: Connection) -> dg.AssetCheckResult:
            return judged(question(connection, month) for month in closed_months(connection))

        return looked(database, name, judge)

    return check


@dg.asset_check(
    asset=closed_books,
    name="ledger_reconciles",
    description="What is posted about every month, closed ones included, is what its movements come to, each amount, "
    "as far as they were read; the parked aside.",
)
def ledger_reconciles(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether all that was ever posted is what was ever sold, refunded and charged."""
    return audited(database, "ledger_reconciles", [one for one in INVARIANTS if one.name == "ledger_reconciles"])


# Those that have a check of their own, or are only listed.
_ASKED_ELSEWHERE = {
    "guarded", "order_of_recording", "complete", "nothing_parked", "ledger_reconciles", "chain_holds",
    "closed_months_unchanged", "payables_paid", "nothing_in_doubt",
}  # fmt: skip


@dg.asset_check(
    asset=closed_books,
    name="all_fits_together",
    description="Periods, passes, entries, totals, balances, payouts, mails, events, claims and firings agree; "
    "`ticketflow audit` shows the same one by one.",
)
def all_fits_together(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether any invariant is broken that has no check of its own."""
    judged = [one for one in INVARIANTS if one.scope != Scope.LISTED and not one.warns]
    others = [one for one in judged if one.name not in _ASKED_ELSEWHERE]
    return audited(database, "all_fits_together", others)


BOOKS_CHECKS = [
    ledger_reconciles,
    all_fits_together,
    _books_check(
        "chain_holds",
        invariants.broken_chain,
        "Every balance of a closed month opens with what the one before left, and none is missing, parked ones aside.",
    ),
    _books_check(
        "closed_months_unchanged",
        invariants.changed_since_closing,
        "The ledger of every closed month is what its balances say, and nothing was posted into it since.",
    ),
]
