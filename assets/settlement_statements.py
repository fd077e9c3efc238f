"""The asset that issues statements of closed months: writes every one, queues the mails, shows what they come to."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import dagster as dg

from assets.month_loop import asked, each_month
from assets.partitions import months
from assets.progress import paced
from assets.settlement_checks import judged, looked
from assets.tables import table
from resources import ClockResource, DatabaseResource
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.db.installation import decided
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings
from ticketflow_orch.statements import (
    StatementOptions,
    StatementsLeftOutError,
    StatementsResult,
    issue_statements,
    statements_place,
)
from ticketflow_orch.statements.columns import COLUMNS, TOTALS
from ticketflow_orch.statements.invariants import judged_statements

STATEMENT_COLUMNS = dg.TableSchema(columns=[dg.TableColumn(one.name, one.type, one.about) for one in COLUMNS])


@dg.asset(
    partitions_def=months,
    deps=[dg.AssetKey("closed_books")],
    # A run for all months of a backfill, one after the other; each is committed by itself.
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool="statements",
    group_name="settlement",
    owners=["team:finance"],
    kinds={"postgres", "parquet"},
    tags={"domain": "settlement"},
    metadata={"dagster/column_schema": STATEMENT_COLUMNS},
)
def settlement_statements(
    context: dg.AssetExecutionContext, database: DatabaseResource, clock: ClockResource
) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization]:  # type: ignore[type-arg]
    """What each organization is owed for a closed month, and why: a page for each, and one table of all.

    Materializing a month again writes the same bytes and mails nobody again. A month whose books are not closed is
    refused. A statement that does not add up to the ledger is left out: the others are written and mailed, and the run
    fails, naming it, until it is right.
    """
    line = paced(context.log.info)
    with database.engine("settlement_statements", connections=2, patience=PATIENCE) as engine:

        def issue(month: Month) -> Mapping[str, Any]:
            configured = asked(engine, lambda connection: decided(connection, settings()))
            options = StatementOptions.configured(configured)
            result = issue_statements(
                engine,
                month,
                options,
                now=clock.now(),
                progress=partial(_say_how_far, line, month),
            )
            return statements_metadata(result)

        yield from each_month(context, engine, issue, own_faults=(StatementsLeftOutError,))


def _say_how_far(line: Callable[[str], None], month: Month, statements: int) -> None:
    line(f"{month}: {counted(statements, 'statement')} written")


def statements_metadata(result: StatementsResult) -> dict[str, Any]:
    """The metadata of one month's statements."""
    metadata: dict[str, Any] = {
        "summary": dg.MetadataValue.md(_summary(result)),
        "totals": table(TOTALS, result.totals.values()),
        "statements": result.statements,
        "files": result.files,
        "bytes": result.size,
        "mails": result.mails,
        "seconds": round(result.seconds, 3),
    }
    for name, address in (("folder", result.folder), ("csv", result.csv), ("parquet", result.parquet)):
        is_url = "://" in address
        metadata[name] = dg.MetadataValue.url(address) if is_url else dg.MetadataValue.path(address)
    return metadata


def _summary(result: StatementsResult) -> str:
    if result.mails_off:
        mails = "Nobody is mailed until `ticketflow installation set mail_from` says from when on."
    elif result.mails:
        mails = f"{counted(result.mails, 'mail')} queued."
    else:
        mails = "No new mails: they were queued before, nobody has a contact address, or the month is history."
    return f"**{counted(result.statements, 'statement')}** of {result.month} in `{result.folder}`. {mails}"


@dg.asset_check(
    asset=settlement_statements,
    name="statements_add_up",
    description="The statements of every month, as they lie in their place, are what ledger and balances come to, and "
    "none was left out.",
)
def statements_add_up(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether all statements that have been written are still there and right, and which could not be written."""
    place = statements_place(settings())
    return judged(looked(database, "statements_add_up", lambda connection: list(judged_statements(connection, place))))
