"""A backfill over everything that becomes of a month: settled, closed, paid, statements issued."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text

from tests.end_to_end.back_office import LAUNCH_BACKFILL, BackOffice, Run, opened
from tests.support.payments import SECRET, configuration
from tests.support.provider import Provider
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.months import Month

# Business time: June 2025 is over everywhere.
NOW = "2025-07-10T05:00:00Z"
CHAIN = ("monthly_settlement", "closed_books", "payouts", "settlement_statements")
_ENDED = ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED")


@dataclass(frozen=True, slots=True)
class ChainBackfill:
    """A backfill of the whole chain that has ended, with its runs in the order of their start.

    `settled` are the runs of single months, `portions` those that closed and paid several and issued their statements.
    In seconds: `start` from the request to the first step, `whole` to the end of the last run, `steps` what each asset
    worked.
    """

    status: str
    months: int
    settled: Sequence[Run]
    portions: Sequence[Run]
    start: float
    whole: float
    steps: Mapping[str, float]

    @property
    def overhead(self) -> float:
        """Seconds a month beyond the assets' own work: queues, starts of processes, checks, Dagster's half minutes."""
        return (self.whole - self.start - sum(self.steps.values())) / self.months

    def __str__(self) -> str:
        work = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.steps.items())
        return (
            f"{self.months} months in {self.whole:.0f} s: {self.start:.1f} s from request to first step, "
            f"{self.overhead:.2f} s a month beyond the work itself ({work}), "
            f"{len(self.portions)} runs to close, pay and state"
        )


@dataclass(frozen=True, slots=True)
class ChainOffice:
    """An office in which the first thing that ever happened was such a backfill, and the provider that pays."""

    office: BackOffice
    provider: Provider
    backfill: ChainBackfill


@contextmanager
def provider_office(home: Path, months: Sequence[str], organizations: int) -> Iterator[tuple[BackOffice, Provider]]:
    """An office in which the demo's organizations have sold in `months`, and the provider that pays them.

    The schedules of months are off: their hours may come while it is open.
    """
    home.mkdir(parents=True, exist_ok=True)
    provider = Provider(home / "provider.jsonl")
    provider.start()
    try:
        with opened(
            home,
            TICKETFLOW_FIRST_MONTH=months[0],
            TICKETFLOW_FIXED_CLOCK=NOW,
            TICKETFLOW_PAYOUTS_FROM=months[0],
            # A handful of organizations has quiet months, which are no reason to hold anything.
            TICKETFLOW_PAYOUT_REVIEW_FACTOR="10",
            TICKETFLOW_DELIVERY=str(configuration(provider, home, deadline=20)),
            **SECRET,
        ) as office:
            office.leave_to_people()
            load_demo(office.engine, Month.parse(months[-1]), len(months), organizations)
            yield office, provider
    finally:
        provider.kill()


def confirmed(engine: Engine) -> list[tuple[str, str, int]]:
    """Every payout that is confirmed: organization, currency, minor units."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("""
                SELECT external_ref, payout.currency, amount
                FROM payout JOIN organization ON organization.id = organization_id WHERE state = 'CONFIRMED'
            """)
        )
        return sorted((row.external_ref, row.currency, row.amount) for row in rows)


def request_chain(office: BackOffice, months: Sequence[str]) -> str:
    """Request a backfill of `months` of the whole chain as the lineage's page does; returns its id."""
    parameters = {"assetSelection": [{"path": [name]} for name in CHAIN], "partitionNames": list(months)}
    launched = office.ask(LAUNCH_BACKFILL, parameters=parameters)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return str(launched["backfillId"])


def backfill_chain(office: BackOffice, months: Sequence[str], patience: float = 300) -> ChainBackfill:
    """Backfill `months` of the whole chain, and wait until that has ended."""
    requested = time.time()
    backfill = request_chain(office, months)

    def ended() -> str | None:
        status = str(office.ask(STATUS, id=backfill)["partitionBackfillOrError"]["status"])
        return status if status in _ENDED else None

    status = office.wait_for(ended, f"the backfill of {months[0]} to {months[-1]}", patience)
    runs = sorted(office.runs(dagster_backfill=backfill), key=lambda run: run.started or 0)
    worked = [step for run in runs for step in office.ask(STEPS, id=run.id)["runOrError"]["stepStats"]]
    return ChainBackfill(
        status=status,
        months=len(months),
        settled=[run for run in runs if "dagster/partition" in run.tags],
        portions=[run for run in runs if "dagster/partition" not in run.tags],
        start=min(step["startTime"] for step in worked) - requested,
        whole=max(run.ended or 0 for run in runs) - requested,
        steps={
            name: sum(step["endTime"] - step["startTime"] for step in worked if step["stepKey"] == name)
            for name in CHAIN
        },
    )


def checks(office: BackOffice) -> Mapping[str, bool | None]:
    """Whether each check of the chain's assets passed when it was last judged; None where it never was."""
    found = {}
    for asset in CHAIN:
        for check in office.ask(CHECKS, key={"path": [asset]})["assetNodeOrError"]["assetChecksOrError"]["checks"]:
            judged = check["executionForLatestMaterialization"]
            found[check["name"]] = judged and judged["evaluation"] and judged["evaluation"]["success"]
    return found


STATUS = """
query ($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }
"""

STEPS = """
query ($id: ID!) { runOrError(runId: $id) { ... on Run { stepStats { stepKey startTime endTime } } } }
"""

CHECKS = """
query ($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      assetChecksOrError {
        ... on AssetChecks { checks { name executionForLatestMaterialization { evaluation { success } } } }
      }
    }
  }
}
"""
