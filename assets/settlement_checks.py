"""Checks on the settlement. Each judges every month that is settled and not closed, or more, and names the bad ones.

The latest result of a check hides those before it, so a check of one month alone would let the next month's run hide
a broken one. What must hold is raised inside the settlement itself; these show it.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import dagster as dg
from sqlalchemy import Connection, Engine

from assets.month_loop import asked
from assets.monthly_settlement import monthly_settlement
from assets.tables import table
from resources import DatabaseResource
from ticketflow_orch.auditing import INVARIANTS, Asked, Invariant, Verdict, examine, snapshot
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.formatting.columns import Column
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import open_months, settled_months
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement import invariants

Answer = TypeVar("Answer")

# The invariant that is broken, where there are several, in which month, and by what.
_Found = tuple[str, invariants.Finding, invariants.Breach]
_BROKEN: tuple[Column[_Found], ...] = (
    Column("invariant", lambda found: found[0]),
    Column("month", lambda found: str(found[1].month or "")),
    Column("organization", lambda found: found[2].organization),
    Column("currency", lambda found: found[2].currency),
    Column("what", lambda found: found[2].what),
)
_BREACHES = _BROKEN[1:]


def _month_check(
    name: str,
    question: Callable[[Connection, Month], invariants.Finding],
    description: str,
    months: Callable[[Connection], tuple[Month, ...]] = settled_months,
) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=monthly_settlement, name=name, description=description)
    def check(database: DatabaseResource) -> dg.AssetCheckResult:
        def judge(connection: Connection) -> dg.AssetCheckResult:
            return judged(question(connection, month) for month in months(connection))

        return looked(database, name, judge)

    return check


def looked(database: DatabaseResource, name: str, question: Callable[[Connection], Answer]) -> Answer:
    """What the database answers to the `question` of the check called `name`, asked again while it is away."""
    with database.engine(f"check {name}", patience=PATIENCE) as engine:
        return asked(engine, question)


def judged(findings: Iterable[invariants.Finding]) -> dg.AssetCheckResult:
    """One result over all months: red when any month has a breach, which its description and table name."""
    looked_at = list(findings)
    bad = [finding for finding in looked_at if finding.count]
    found = [("", finding, breach) for finding in bad for breach in finding.examples]
    description = ", ".join(f"{finding.month}: {finding.count}" for finding in bad) or "No month is bad."
    metadata: dict[str, Any] = {"months judged": len(looked_at), "bad months": len(bad)}
    if found:
        metadata["breaches"] = table(_BREACHES, found)
    return dg.AssetCheckResult(
        passed=not bad, severity=dg.AssetCheckSeverity.ERROR, description=description, metadata=metadata
    )


@dg.asset_check(
    asset=monthly_settlement,
    name="guarded",
    description="The keys, constraints and triggers that protect money are there and switched on, and the ids of "
    "movements are the order in which they were recorded.",
)
def guarded(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether the database itself still guards money, and what settlements read it by."""
    missing = looked(
        database,
        "guarded",
        lambda connection: (*invariants.missing_guards(connection), *invariants.order_faults(connection)),
    )
    return dg.AssetCheckResult(
        passed=not missing, severity=dg.AssetCheckSeverity.ERROR, description="; ".join(missing) or "All in place."
    )


def audited(database: DatabaseResource, name: str, invariants: Iterable[Invariant]) -> dg.AssetCheckResult:
    """One result over `invariants`, asked in one snapshot: red when any is broken, with its rows and how to fix it.

    Where those that are not as they should be only warn, it is a warning.
    """
    invariants = list(invariants)

    def verdicts_on(engine: Engine) -> list[Verdict]:
        with snapshot(engine) as connection:
            return list(examine(connection, Asked.configured(settings()), invariants))

    with database.engine(f"check {name}", patience=PATIENCE) as engine:
        verdicts = retried(engine, lambda: verdicts_on(engine))
    bad = [verdict for verdict in verdicts if verdict.is_broken or verdict.warns]
    found = [
        (verdict.invariant.name, finding, breach)
        for verdict in bad
        for finding in verdict.findings
        for breach in finding.examples
    ]
    counts = ", ".join(f"{verdict.invariant.name}: {verdict.no_answer or verdict.count}" for verdict in bad)
    metadata: dict[str, Any] = {"invariants judged": len(verdicts), "broken": len(bad)}
    if found:
        metadata["breaches"] = table(_BROKEN, found)
    if bad:
        fixes = "\n".join(f"- **{one.invariant.name}**: {one.invariant.holds} {one.invariant.fix}" for one in bad)
        metadata["how to fix it"] = dg.MetadataValue.md(fixes)
    broken = any(verdict.is_broken for verdict in bad)
    return dg.AssetCheckResult(
        passed=not bad,
        severity=dg.AssetCheckSeverity.ERROR if broken or not bad else dg.AssetCheckSeverity.WARN,
        description=counts or "Nothing is broken.",
        metadata=metadata,
    )


@dg.asset_check(
    asset=monthly_settlement,
    name="movements_plausible",
    description="No more came back than was taken, no reservation was captured twice, nothing is dated before what it "
    "reverses or later than now. A warning: it stops no month; `ticketflow anomalies list` shows the same.",
)
def movements_plausible(database: DatabaseResource) -> dg.AssetCheckResult:
    """Whether all movements can be right, what people have accepted aside."""
    return audited(database, "movements_plausible", [one for one in INVARIANTS if one.warns])


SETTLEMENT_CHECKS = [
    _month_check(
        "complete",
        invariants.organizations_without_row,
        "Every organization active in a month has its settlement row, parked ones aside.",
        open_months,
    ),
    _month_check(
        "honest",
        invariants.dishonest_organizations,
        "What is posted about a month equals what its movements come to, recomputed up to where it was read.",
    ),
    _month_check(
        "nothing_parked",
        invariants.parked_in,
        "No organization is parked in a month, closed ones included: it is not paid until that is fixed.",
        invariants.months_with_parked,
    ),
    guarded,
    movements_plausible,
]
