"""A pass from its cutoff to its end: begun or joined, waited for, planned once, finished by whoever is last."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, text

from ticketflow_orch.database import transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.months import Month, Window, last_zone_to_finish
from ticketflow_orch.outbox import OutboxEvent, Publish
from ticketflow_orch.settlement.closed_months import PLAN_LATE, late_windows, months_to_watch, takes_postings
from ticketflow_orch.settlement.cutting import PLAN_MONTH
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.windows import fix_windows, fixed_windows


class IncompleteSettlementError(RuntimeError):
    """The month is not settled after this run; the message says why, and running the month again goes on from here."""


class ParkedLimitError(IncompleteSettlementError):
    """More organizations fail than may be parked: something is wrong that one organization's data do not explain."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How far a pass has come, in chunks."""

    done: int
    total: int


def zones_in_use(connection: Connection) -> list[str]:
    """The IANA zones of all organizations, by one index probe a zone."""
    return list(
        connection.execute(
            text("""
                WITH RECURSIVE distinct_zone (timezone) AS (
                    (SELECT timezone FROM organization ORDER BY timezone LIMIT 1)
                    UNION ALL
                    SELECT (SELECT timezone FROM organization WHERE timezone > distinct_zone.timezone
                            ORDER BY timezone LIMIT 1)
                    FROM distinct_zone WHERE timezone IS NOT NULL
                )
                SELECT timezone FROM distinct_zone WHERE timezone IS NOT NULL
            """)
        ).scalars()
    )


def require_over(connection: Connection, month: Month, now: datetime) -> None:
    """Raise InputError unless `month` is over, at `now` (aware), in every zone in use; names the last zone and when."""
    timezone, ends_at = last_zone_to_finish(month, zones_in_use(connection) or ["UTC"])
    if now < ends_at:
        raise InputError(
            f"{month} is not over in {timezone} before {ends_at.isoformat()}, and it is {now.isoformat()}; "
            "settle it from then on."
        )


def period_state(connection: Connection, month: Month) -> str:
    """OPEN, SETTLED, CLOSING or CLOSED; a month that nobody has touched is OPEN."""
    state = connection.execute(
        text("SELECT state FROM settlement_period WHERE month = :month"), {"month": month.first_day}
    ).scalar_one_or_none()
    return state or "OPEN"


def begin_or_join(engine: Engine, month: Month) -> tuple[Pass, bool]:
    """A new pass of `month`, cut off at the database's clock, or the one under way; and whether it was joined.

    Raises:
        IncompleteSettlementError: the month began to be closed in this moment.
    """
    parameters = {"month": month.first_day}
    while True:
        with transaction(engine) as connection:
            connection.execute(
                text("INSERT INTO settlement_period (month) VALUES (:month) ON CONFLICT DO NOTHING"), parameters
            )
            # The table's lock, which the insertion holds, keeps a closing from beginning before we have ended.
            if not takes_postings(connection, month):
                raise IncompleteSettlementError(f"{month} is being closed at this moment; nothing is posted in it.")
            begun = connection.execute(
                text("""
                    INSERT INTO settlement_pass (month, pass, cutoff)
                    SELECT CAST(:month AS date), 1 + coalesce(max(pass), CAST(
                        EXISTS (SELECT FROM ledger_entry WHERE month = CAST(:month AS date)) AS integer)),
                        clock_timestamp()
                    FROM settlement_pass WHERE month = CAST(:month AS date)
                    ON CONFLICT DO NOTHING
                    RETURNING pass AS number, cutoff
                """),
                parameters,
            ).one_or_none()
        if begun is not None:
            return Pass(month, begun.number, begun.cutoff), False
        with engine.connect() as connection:
            running = connection.execute(
                text("SELECT pass AS number, cutoff FROM settlement_pass WHERE month = :month AND state = 'RUNNING'"),
                parameters,
            ).one_or_none()
        if running is not None:
            return Pass(month, running.number, running.cutoff), True
        # It ended between the two statements: the next try begins the following one.


def wait_for_writers(engine: Engine, settlement: Pass, patience: float) -> None:
    """Wait until every transaction that has written movements by now, and has not ended, has ended.

    A movement carries the clock of its insert, and its transaction holds ROW EXCLUSIVE on the table from before that
    until after it is visible. So after this wait all that was recorded before now is visible or rolled back, and no
    writer was held up. CREATE INDEX CONCURRENTLY waits in the same way. A pass that is planned has waited already:
    who joins it does not wait for writers that came after its cutoff.

    Raises:
        IncompleteSettlementError: after `patience` seconds some are still open; names them.
    """
    deadline = time.monotonic() + patience
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        awaited = _writers(connection)
        while awaited and not _is_planned(connection, settlement):
            if time.monotonic() > deadline:
                raise IncompleteSettlementError(
                    f"Still writing movements after {patience:g} s: {', '.join(sorted(awaited.values()))}; "
                    "let them commit or end them, then settle the month again."
                )
            time.sleep(0.05)
            still = _writers(connection)
            awaited = {transaction: name for transaction, name in awaited.items() if transaction in still}


def plan(engine: Engine, settlement: Pass, chunk_size: int) -> dict[Month, dict[str, Window]]:
    """Cut the pass into chunks, once; returns the time windows of each month it is about.

    Besides the month itself, the first month that is not closed takes in what came late for the closed months before.
    """
    with transaction(engine) as connection:
        planned_at = connection.execute(
            text("SELECT planned_at FROM settlement_pass WHERE month = :month AND pass = :pass FOR UPDATE"),
            settlement.key,
        ).scalar_one()
        if planned_at is None:
            timezones = zones_in_use(connection)
            watched = months_to_watch(connection, settlement.month, timezones, settlement.cutoff)
            fix_windows(connection, (settlement.month, *watched), timezones)
            connection.execute(PLAN_MONTH, settlement.key | {"size": chunk_size})
            if watched:
                windows = fixed_windows(connection, watched)
                connection.execute(
                    PLAN_LATE,
                    settlement.key | late_windows(windows) | {"size": chunk_size, "cutoff": settlement.cutoff},
                )
            connection.execute(
                text("UPDATE settlement_pass SET planned_at = clock_timestamp() WHERE month = :month AND pass = :pass"),
                settlement.key,
            )
        return planned_windows(connection, settlement)


def planned_windows(connection: Connection, settlement: Pass) -> dict[Month, dict[str, Window]]:
    """For each month that the pass is about, each zone's window as it was fixed."""
    origins = connection.execute(
        text("SELECT DISTINCT origin_month FROM settlement_chunk WHERE month = :month AND pass = :pass"),
        settlement.key,
    ).scalars()
    return fixed_windows(connection, {settlement.month, *map(Month.of_day, origins)})


def drained(connection: Connection, settlement: Pass) -> Drained:
    """How many chunks of the pass are done (or failed for good), by a plain read that waits for nobody."""
    row = connection.execute(
        text("""
            SELECT count(*) AS total, count(*) FILTER (WHERE state <> 'PLANNED') AS done
            FROM settlement_chunk WHERE month = :month AND pass = :pass
        """),
        settlement.key,
    ).one()
    return Drained(row.done, row.total)


def latest_progress(connection: Connection, month: Month) -> Drained:
    """How far the last pass of `month` has come; nothing of nothing before its first."""
    row = connection.execute(
        text("""
            SELECT count(*) FILTER (WHERE state <> 'PLANNED') AS done, count(*) AS total
            FROM settlement_chunk
            WHERE month = :month AND pass = (SELECT max(pass) FROM settlement_pass WHERE month = :month)
        """),
        {"month": month.first_day},
    ).one()
    return Drained(row.done, row.total)


def finish(engine: Engine, settlement: Pass, now: datetime, settled_by: str, publish: Publish) -> bool:
    """End the pass and settle its month, when no chunk is due; returns whether this call did it.

    Raises:
        IncompleteSettlementError: a time zone came into use after the pass was planned.
    """
    with transaction(engine) as connection:
        ended = connection.execute(
            text("""
                UPDATE settlement_pass SET state = 'DONE', finished_at = clock_timestamp()
                WHERE month = :month AND pass = :pass AND state = 'RUNNING' AND planned_at IS NOT NULL
                    AND NOT EXISTS (
                        SELECT FROM settlement_chunk WHERE (month, pass) = (:month, :pass) AND state = 'PLANNED')
            """),
            settlement.key,
        ).rowcount
        if not ended:
            return False
        connection.execute(_RESOLVE_PARKED, settlement.key)
        connection.execute(_TOTAL, settlement.key)
        planned = planned_windows(connection, settlement).get(settlement.month, {})
        unplanned = set(zones_in_use(connection)) - set(planned)
        if not unplanned:
            settled = connection.execute(
                text("""
                    UPDATE settlement_period SET state = 'SETTLED', settled_at = clock_timestamp(), settled_by = :who
                    WHERE month = :month AND state = 'OPEN'
                """),
                {"month": settlement.month.first_day, "who": settled_by},
            ).rowcount
            if settled:
                publish(
                    connection,
                    OutboxEvent(
                        aggregate_type="settlement_period",
                        aggregate_id=str(settlement.month),
                        event_type="MonthSettled",
                        payload={"month": str(settlement.month)},
                        dedupe_key=f"MonthSettled:{settlement.month}",
                        occurred_at=now,
                    ),
                )
    if unplanned:
        raise IncompleteSettlementError(
            f"{', '.join(sorted(unplanned))} came into use while {settlement.month} was being settled; settle it again."
        )
    return True


def give_up(engine: Engine, settlement: Pass) -> None:
    """End a pass that does not come to its end, so that the next run begins one whose cutoff is after what is mended.

    What it posted stays, and the next pass finds it. Waits for the chunks that are in a worker's hands.
    """
    with transaction(engine) as connection:
        ended = connection.execute(
            text("""
                UPDATE settlement_pass SET state = 'GIVEN_UP', finished_at = clock_timestamp()
                WHERE month = :month AND pass = :pass AND state = 'RUNNING'
            """),
            settlement.key,
        ).rowcount
        # Again until there is none: a chunk that we waited for may have been split, and then its second half is new.
        while ended:
            ended = connection.execute(
                text("DELETE FROM settlement_chunk WHERE month = :month AND pass = :pass AND state = 'PLANNED'"),
                settlement.key,
            ).rowcount


def _is_planned(connection: Connection, settlement: Pass) -> bool:
    return bool(
        connection.execute(
            text("SELECT planned_at IS NOT NULL FROM settlement_pass WHERE month = :month AND pass = :pass"),
            settlement.key,
        ).scalar_one()
    )


def _writers(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        text("""
            SELECT DISTINCT virtualtransaction, coalesce(pid, 0) AS pid,
                coalesce(nullif(application_name, ''), 'unnamed') AS application
            FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
            WHERE locktype = 'relation' AND relation = CAST('money_movement' AS regclass) AND granted
                AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                AND pid IS DISTINCT FROM pg_backend_pid()
        """)
    )
    return {row.virtualtransaction: f"process {row.pid} ({row.application})" for row in rows}


# An organization that was parked for a month is mended when a pass has looked at it and did not fail on it.
_RESOLVE_PARKED = text("""
    UPDATE parked_organization SET resolved_at = clock_timestamp()
    FROM settlement_chunk AS chunk
    WHERE chunk.month = :month AND chunk.pass = :pass AND chunk.state = 'DONE'
        AND parked_organization.month = chunk.origin_month AND parked_organization.error IS NOT NULL
        AND resolved_at IS NULL
        AND organization_id BETWEEN chunk.low_id AND coalesce(chunk.high_id, organization_id)
""")

# What was posted since the pass that wrote them last, also by one that was given up; a month may be old and have none.
_TOTAL = text("""
    INSERT INTO settlement_total AS total
    SELECT month, currency, count(*) FILTER (WHERE origin_month = month AND sequence = 0),
        sum(captures), sum(refunds), sum(chargebacks), sum(fees), sum(commission), sum(commission_tax), sum(net)
    FROM ledger_entry
    WHERE month = CAST(:month AS date) AND (
        NOT EXISTS (SELECT FROM settlement_total WHERE month = CAST(:month AS date))
        OR EXISTS (
            SELECT FROM settlement_chunk
            WHERE month = CAST(:month AS date) AND rows_new + rows_adjusted > 0 AND pass > (
                SELECT coalesce(max(pass), 0) FROM settlement_pass
                WHERE month = CAST(:month AS date) AND pass < CAST(:pass AS integer) AND state = 'DONE')))
    GROUP BY month, currency
    ON CONFLICT (month, currency) DO UPDATE SET
        (organizations, captures, refunds, chargebacks, fees, commission, commission_tax, net) =
        (excluded.organizations, excluded.captures, excluded.refunds, excluded.chargebacks, excluded.fees,
        excluded.commission, excluded.commission_tax, excluded.net)
""")
