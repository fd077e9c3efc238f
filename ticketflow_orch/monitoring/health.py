"""What an outside watchdog must know: the situation judged, one line a problem.

The alerts in the outbox travel through what they watch; this does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta

from ticketflow_orch.formatting.ages import written_out
from ticketflow_orch.jobs.intervals import LAST_SETTLEMENT_DAY, LONGEST_STANDSTILL, WATCHED_BY_AGE
from ticketflow_orch.monitoring.snapshot import Situation
from ticketflow_orch.months import Month, day_window, unknown_zone
from ticketflow_orch.outbox.backlog import faults
from ticketflow_orch.periods.two_clocks import LARGEST_DIFFERENCE

LARGEST_CLOCK_DIFFERENCE = 5.0  # seconds
_LONGEST_DUE = {job.name: job.longest_due for job in WATCHED_BY_AGE}


def problems(situation: Situation, business_timezone: str, outbox_late: timedelta) -> Iterator[str]:
    """One line for each thing that is wrong in `situation`, naming the value and what to look at.

    `outbox_late`: for how long an event may be due for delivery.
    """
    yield from (f"settings: {fault}" for fault in situation.disagreements)
    yield from _bad_rows(situation)
    yield from _left_out(situation)
    for job, since in sorted(situation.due_since.items()):
        age = situation.business_now - since
        if age > _LONGEST_DUE[job]:
            yield f"{job}: work has been due for {written_out(age)}, since {_instant(since)}; see its schedule."
    for claim in situation.stale:
        yield (
            f"claim ({claim.job}, {claim.key}): its holder {claim.owner} let the lease end at "
            f"{_instant(claim.lease_until)}; the next run takes it over, or use `ticketflow claims release`."
        )
    yield from _late_months(situation, business_timezone)
    for obstacle in situation.obstacles:
        if situation.database_now - obstacle.since > obstacle.patience:
            yield f"{obstacle.what}, since {_instant(obstacle.since)}; {obstacle.out}."
    for fault in faults(situation.outbox, outbox_late):
        yield f"outbox: {fault}"
    for payouts in situation.payouts:
        if payouts.labels == ("IN_DOUBT",):
            yield (
                f"payouts: {payouts.count:,} in doubt; ask the provider, then use `ticketflow payouts resolve` "
                "(`ticketflow payouts list --state in_doubt` names them)."
            )
    if abs(situation.clock_difference) > LARGEST_CLOCK_DIFFERENCE:
        direction = "ahead of" if situation.clock_difference > 0 else "behind"
        yield (
            f"clock: this host is {abs(situation.clock_difference):.1f} s {direction} the database; "
            "check the time synchronization of both."
            + (" Nothing is settled, closed, expired or reminded until then." if _does_nothing(situation) else "")
        )


def _does_nothing(situation: Situation) -> bool:
    return abs(situation.clock_difference) > LARGEST_DIFFERENCE


def _bad_rows(situation: Situation) -> Iterator[str]:
    for why in dict.fromkeys(situation.unanswered.values()):
        yield f"data: a question had no answer: {why}"
    if situation.untold:
        figures = ", ".join(sorted(situation.untold)).replace("_", " ")
        why = next(iter(situation.untold.values()))
        yield (
            f"database: a question had no answer ({why}), so nothing is known of {figures}; see who holds locks, what "
            "the server is busy with (pg_stat_activity), and its log."
        )
    for organization, timezone in situation.unknown_zones.items():
        yield f"data: organization {organization}: {unknown_zone(timezone)}"


def _left_out(situation: Situation) -> Iterator[str]:
    last = {row.job: row for row in situation.left_out}
    for row in situation.left_out:
        yield (
            f"{row.job}: {row.name} is left out, since {_instant(row.since)}: {row.error.rstrip('.')}; correct what "
            "refuses it, and a later run takes it in."
        )
        if row is last[row.job] and row.more > 0:
            yield f"{row.job}: {row.more:,} more rows are left out; the first of them stand above."


def _late_months(situation: Situation, business_timezone: str) -> Iterator[str]:
    for month in situation.unsettled:
        if situation.business_now >= _deadline(month, business_timezone):
            yield f"{month} is not settled after day {LAST_SETTLEMENT_DAY}; see `ticketflow status` and its last run."
    for month, since in situation.unstated.items():
        if situation.database_now - since > LONGEST_STANDSTILL:
            yield (
                f"{month} was closed {_instant(since)} and lacks statements; materialize settlement_statements for it: "
                "the run names what it has to leave out, and so does its check."
            )


def _deadline(month: Month, business_timezone: str) -> datetime:
    following = month.next()
    return day_window(date(following.year, following.number, LAST_SETTLEMENT_DAY + 1), business_timezone).starts_at


def _instant(instant: datetime | None) -> str:
    return "" if instant is None else instant.isoformat(timespec="seconds")
