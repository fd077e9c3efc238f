"""A pass from its cutoff to its end: begun or joined, waited for, planned once, finished by the last worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month, Window
from ticketflow_orch.outbox.events import OutboxEvent, Publish
from ticketflow_orch.periods.state import mark_read, mark_settled, takes_postings, touch
from ticketflow_orch.periods.windows import fix_windows, fixed_windows
from ticketflow_orch.periods.zones import in_unknown_zones, zones_in_use
from ticketflow_orch.settlement.chunking import PLAN_ALL
from ticketflow_orch.settlement.late_movements import (
    PLAN_CHANGED,
    Unread,
    closed_before,
    months_to_watch,
    read_to,
)
from ticketflow_orch.settlement.posting import Pass


class IncompleteSettlementError(RuntimeError):
    """The month is not settled after this run; the message says why, and running the month again goes on from here."""


class ParkedLimitError(IncompleteSettlementError):
    """More organizations fail than may be parked: something is wrong that one organization's data do not explain."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How far a pass has come, in chunks."""

    done: int
    total: int


def begin_or_join(engine: Engine, month: Month, *, full: bool = False) -> tuple[Pass, bool]:
    """A new pass of `month`, cut off at the next movement's id, or the running one; and whether it was joined.

    Raises:
        IncompleteSettlementError: the month began to be closed in this moment.
    """
    parameters = {"month": month.first_day, "full": full}
    while True:
        with transaction(engine) as connection:
            # The table's lock, which this holds, keeps a closing from beginning before we have ended.
            touch(connection, month)
            if not takes_postings(connection, month):
                raise IncompleteSettlementError(f"{month} is being closed at this moment; nothing is posted in it.")
            begun = connection.exec_driver_sql(_BEGIN, parameters).one_or_none()
        if begun is not None:
            return Pass(month, **begun._asdict()), False
        with engine.connect() as connection:
            running = running_pass(connection, month)
        if running is not None:
            return running, True
        # It ended between the two statements: the next try begins the following one.


def running_pass(connection: Connection, month: Month) -> Pass | None:
    """The pass of `month` that is running, whether or not a run works on it."""
    found = connection.exec_driver_sql(_RUNNING, {"month": month.first_day}).one_or_none()
    return None if found is None else Pass(month, **found._asdict())


def wait_for_writers(engine: Engine, settlement: Pass, patience: float) -> None:
    """Wait until every transaction that has written movements by now, and has not ended, has ended.

    A movement's id is drawn while its transaction holds ROW EXCLUSIVE on the table, which it does until the movement is
    visible. So after this wait all ids below the cutoff are visible or rolled back, and no writer was held up. CREATE
    INDEX CONCURRENTLY waits in the same way. A pass that is planned has waited already: who joins it does not wait for
    writers that came after its cutoff.

    Raises:
        IncompleteSettlementError: after `patience` seconds some are still open; names them.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        writing = still_writing(connection, patience, lambda: _is_planned(connection, settlement))
    if writing:
        raise IncompleteSettlementError(
            f"Still writing movements after {patience:g} s: {', '.join(writing)}; "
            "let them commit or end them, then settle the month again."
        )


def still_writing(
    connection: Connection, patience: float, is_needless: Callable[[], bool] = lambda: False
) -> Sequence[str]:
    """Who has written movements by now and has not ended after `patience` seconds; nobody where that is needless."""
    deadline = time.monotonic() + patience
    awaited = _writers(connection)
    while awaited and not is_needless():
        if time.monotonic() > deadline:
            return sorted(awaited.values())
        time.sleep(0.05)
        still = _writers(connection)
        awaited = {transaction: name for transaction, name in awaited.items() if transaction in still}
    return ()


def plan(engine: Engine, settlement: Pass, chunk_size: int, parked_limit: int = 100) -> dict[Month, dict[str, Window]]:
    """Cut the pass into chunks, once; returns the time windows of each month it is about.

    The first pass of a month looks at all organizations, a later one at those that can have changed. The first month
    that is not closed takes in what came late for the closed months before it. Organizations in unknown zones are
    parked.

    Raises:
        ParkedLimitError: more than `parked_limit` organizations are in zones that nobody knows.
    """
    with transaction(engine) as connection:
        planned_at = connection.exec_driver_sql(
            "SELECT planned_at FROM settlement_pass WHERE month = %(month)s AND pass = %(pass)s FOR UPDATE",
            settlement.key,
        ).scalar_one()
        if planned_at is None:
            closed_through = closed_before(connection, settlement.month)
            _cut(connection, settlement, chunk_size, parked_limit)
            connection.exec_driver_sql(
                """
                    UPDATE settlement_pass SET planned_at = clock_timestamp(), closed_through = %(through)s::date
                    WHERE month = %(month)s AND pass = %(pass)s
                """,
                settlement.key | {"through": None if closed_through is None else closed_through.first_day},
            )
        return planned_windows(connection, settlement)


def _cut(connection: Connection, settlement: Pass, chunk_size: int, parked_limit: int) -> None:
    timezones = zones_in_use(connection)
    watched = months_to_watch(connection, settlement.month, timezones, settlement.cutoff, full=settlement.is_full)
    months = (*watched, settlement.month)
    fix_windows(connection, months, timezones)
    windows = fixed_windows(connection, months)
    is_first = read_to(connection, [settlement.month])[settlement.month] == 0
    everybody = [month for month in months if settlement.is_full or (is_first and month == settlement.month)]
    connection.exec_driver_sql(
        PLAN_ALL, settlement.key | {"size": chunk_size, "origins": [month.first_day for month in everybody]}
    )
    others = {month: windows.get(month, {}) for month in months if month not in everybody}
    own = settlement.month if settlement.month in others else None
    unread = Unread.of(connection, others, settlement.cutoff, own=own)
    connection.exec_driver_sql(PLAN_CHANGED, unread.parameters() | settlement.key | {"size": chunk_size})
    left = in_unknown_zones(connection, settlement.month, months, settlement.cutoff)
    organizations = len({row.organization_id for row in left})
    if organizations > parked_limit:
        raise ParkedLimitError(
            f"{organizations} organizations are in time zones that tzdata does not know, such as "
            f"{left[0].external_ref} ({left[0].error}); then settle the month again."
        )
    for row in left:
        park(connection, row.organization_id, Month.of_day(row.origin_month), row.error)


def park(connection: Connection, organization: int, month: Month, error: str) -> None:
    """Leave the organization with this id out of `month`, since its own data fail, until a pass settles it."""
    connection.exec_driver_sql(_PARK, {"id": organization, "month": month.first_day, "error": error})


def planned_windows(connection: Connection, settlement: Pass) -> dict[Month, dict[str, Window]]:
    """For each month that the pass is about, each zone's window as it was fixed."""
    origins = connection.exec_driver_sql(
        "SELECT DISTINCT origin_month FROM settlement_chunk WHERE month = %(month)s AND pass = %(pass)s",
        settlement.key,
    ).scalars()
    months = {settlement.month, *map(Month.of_day, origins)}
    fixed = fixed_windows(connection, months)
    # A month in which nobody's zone is known has none, and is settled with nothing.
    return {month: fixed.get(month, {}) for month in months}


def drained(connection: Connection, settlement: Pass) -> Drained:
    """How many chunks of the pass are done (or failed for good), by a plain read that waits for nobody."""
    row = connection.exec_driver_sql(
        """
            SELECT count(*) AS total, count(*) FILTER (WHERE state <> 'PLANNED') AS done
            FROM settlement_chunk WHERE month = %(month)s AND pass = %(pass)s
        """,
        settlement.key,
    ).one()
    return Drained(row.done, row.total)


def latest_progress(connection: Connection, month: Month) -> Drained:
    """How far the last pass of `month` has come; nothing of nothing before its first."""
    row = connection.exec_driver_sql(
        """
            SELECT count(*) FILTER (WHERE state <> 'PLANNED') AS done, count(*) AS total
            FROM settlement_chunk
            WHERE month = %(month)s AND pass = (SELECT max(pass) FROM settlement_pass WHERE month = %(month)s)
        """,
        {"month": month.first_day},
    ).one()
    return Drained(row.done, row.total)


def finish(engine: Engine, settlement: Pass, now: datetime, settled_by: str, publish: Publish) -> bool:
    """End the pass, settle its month and note what was read, when no chunk is due; returns whether this call did it.

    Where a zone came into use after the pass was planned, nothing counts as read: the next pass looks again.
    """
    with transaction(engine) as connection:
        ended = connection.exec_driver_sql(_END, settlement.key).one_or_none()
        if ended is None:
            return False
        known = zones_in_use(connection)
        connection.exec_driver_sql(_RESOLVE_PARKED, settlement.key | {"known": known})
        connection.exec_driver_sql(_WITHOUT_SORTS)
        connection.exec_driver_sql(_TOTAL, settlement.key)
        planned = planned_windows(connection, settlement).get(settlement.month, {})
        if set(known) - set(planned):
            return True
        mark_read(connection, settlement.month, ended.closed_through, settlement.cutoff)
        if mark_settled(connection, settlement.month, settled_by):
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
        return True


def give_up(engine: Engine, settlement: Pass, why: str) -> None:
    """End a pass that cannot be finished, so that the next one's cutoff is after what was corrected.

    What it posted stays, and the next pass finds it; `why` is for people. Waits for the chunks that workers hold.
    """
    with transaction(engine) as connection:
        ended = connection.exec_driver_sql(
            """
                UPDATE settlement_pass SET state = 'GIVEN_UP', finished_at = clock_timestamp(),
                    given_up_because = %(why)s, planned_at = coalesce(planned_at, clock_timestamp())
                WHERE month = %(month)s AND pass = %(pass)s AND state = 'RUNNING'
            """,
            settlement.key | {"why": why},
        ).rowcount
        # Again until there is none: a chunk that we waited for may have been split, and then its second half is new.
        while ended:
            ended = connection.exec_driver_sql(
                "DELETE FROM settlement_chunk WHERE month = %(month)s AND pass = %(pass)s AND state = 'PLANNED'",
                settlement.key,
            ).rowcount


def _is_planned(connection: Connection, settlement: Pass) -> bool:
    return bool(
        connection.exec_driver_sql(
            "SELECT planned_at IS NOT NULL FROM settlement_pass WHERE month = %(month)s AND pass = %(pass)s",
            settlement.key,
        ).scalar_one()
    )


def _writers(connection: Connection) -> dict[str, str]:
    rows = connection.exec_driver_sql(
        """
            SELECT DISTINCT virtualtransaction, coalesce(pid, 0) AS pid,
                coalesce(nullif(application_name, ''), 'unnamed') AS application
            FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
            WHERE locktype = 'relation' AND relation = CAST('money_movement' AS regclass) AND granted
                AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                AND pid IS DISTINCT FROM pg_backend_pid()
        """
    )
    return {row.virtualtransaction: f"process {row.pid} ({row.application})" for row in rows}


_RUNNING = """
    SELECT pass AS number, cutoff, cutoff_at, is_full FROM settlement_pass WHERE month = %(month)s AND state = 'RUNNING'
"""

_BEGIN = """
    INSERT INTO settlement_pass (month, pass, cutoff, is_full)
    SELECT %(month)s::date, 1 + coalesce(max(pass), CAST(
        EXISTS (SELECT FROM ledger_entry WHERE month = %(month)s::date) AS integer)),
        nextval('money_movement_id_seq'), %(full)s::boolean
    FROM settlement_pass WHERE month = %(month)s::date
    ON CONFLICT DO NOTHING
    RETURNING pass AS number, cutoff, cutoff_at, is_full
"""

_END = """
    UPDATE settlement_pass SET state = 'DONE', finished_at = clock_timestamp()
    WHERE month = %(month)s AND pass = %(pass)s AND state = 'RUNNING' AND planned_at IS NOT NULL
        AND NOT EXISTS (
            SELECT FROM settlement_chunk WHERE (month, pass) = (%(month)s, %(pass)s) AND state = 'PLANNED')
    RETURNING closed_through
"""

_PARK = """
    INSERT INTO parked_organization (organization_id, month, error) VALUES (%(id)s, %(month)s, %(error)s)
    ON CONFLICT (organization_id, month) WHERE resolved_at IS NULL AND error IS NOT NULL
        DO UPDATE SET error = excluded.error
"""

# An organization that was parked for a month is well when a pass has looked at it and did not fail on it, which it
# cannot do where it does not know the zone: neither by now nor when the pass was planned.
_RESOLVE_PARKED = """
    UPDATE parked_organization SET resolved_at = clock_timestamp()
    FROM settlement_chunk AS chunk, organization, settlement_window AS cut
    WHERE chunk.month = %(month)s AND chunk.pass = %(pass)s AND chunk.state = 'DONE'
        AND parked_organization.month = chunk.origin_month AND parked_organization.error IS NOT NULL
        AND resolved_at IS NULL
        AND organization_id BETWEEN chunk.low_id AND coalesce(chunk.high_id, organization_id)
        AND (chunk.organizations IS NULL OR organization_id = ANY (chunk.organizations))
        AND organization.id = organization_id
        AND cut.month = chunk.origin_month AND cut.timezone = organization.timezone
        AND organization.timezone = ANY (%(known)s::text[])
"""

# Until statistics know of a month, the planner takes its entries for a few, which it would sort by currency; they are
# all there is, and a sort of them goes to disk.
_WITHOUT_SORTS = "SET LOCAL enable_sort = off"

_TOTAL = sql(__file__, "total")
