"""What stands in the way of months: since when, and what removes it.

Each question is one query that an index bounds. How long something may last before anybody need know stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.jobs.intervals import LONGEST_STANDSTILL
from ticketflow_orch.months import Month, known_zones
from ticketflow_orch.payouts.backing import OBJECTION, PAYOUT_OF_EVENT
from ticketflow_orch.payouts.paid_from import first_paid_month, in_words, waiting
from ticketflow_orch.payouts.references import shared_references
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.settlement.anomalies import dated_ahead, noted
from ticketflow_orch.settlement.currencies import STILL_IN_WITHDRAWN
from ticketflow_orch.settlement.due import last_month_over, months_over

_DAY = timedelta(days=1)
# Who enters what is owed before the first sale lets a month of sales go by.
_LONGEST_IDLENESS = timedelta(days=31)
_AT_ONCE = timedelta(0)
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that schedules do not get past: `what` it is, `since` when by the database's clock, the way `out`.

    `patience`: for how long it may last before it is a problem.
    """

    what: str
    since: datetime
    out: str
    patience: timedelta = _AT_ONCE


def read_obstacles(connection: Connection, first_month: Month, now: datetime | None = None) -> tuple[Obstacle, ...]:
    """All that stands in the way at this moment, however short it has.

    `now` is the business time (aware); None: the database's clock.
    """
    return (
        *_running(connection),
        *_given_up(connection),
        *_parked(connection),
        *_parked_by_hand(connection),
        *_shared(connection),
        *_held(connection),
        *_standing_still(connection),
        *_off_for_some(connection),
        *_unbacked(connection),
        *_before_first(connection, first_month),
        *_before_business(connection, first_month, now),
        *_withdrawn_currencies(connection),
        *_anomalies(connection, now),
    )


def _running(connection: Connection) -> Iterator[Obstacle]:
    for row in connection.exec_driver_sql(_RUNNING):
        month = Month.of_day(row.month)
        yield Obstacle(
            f"{month}: its pass {row.number} is running", row.started_at,
            f"let the run that works on it end, or bring it to its end by `ticketflow settle {month}`", _DAY,
        )  # fmt: skip


def _given_up(connection: Connection) -> Iterator[Obstacle]:
    for row in connection.exec_driver_sql(_GIVEN_UP):
        month = Month.of_day(row.month)
        yield Obstacle(
            f"{month}: its pass {row.number} was given up: {row.why}", row.finished_at,
            f"correct the data, then `ticketflow settle {month}`",
        )  # fmt: skip


def _parked(connection: Connection) -> Iterator[Obstacle]:
    # Who lives in a zone that nobody knows is named with it, see `situation`.
    rows = connection.exec_driver_sql(_PARKED, {"most": _NAMED, "known": sorted(known_zones())}).all()
    for row in rows:
        first = Month.of_day(row.month)
        months = f"{first}" if row.months == 1 else f"{first} and {counted(row.months - 1, 'other month')}"
        yield Obstacle(
            f"{_organization(row)} is parked in {months}: {row.why}", row.since,
            "void what is wrong among its movements; the next settlement takes it in", _DAY,
        )  # fmt: skip
    yield from _more(rows)


def _parked_by_hand(connection: Connection) -> Iterator[Obstacle]:
    rows = connection.exec_driver_sql(_BY_HAND, {"most": _NAMED}).all()
    for row in rows:
        yield Obstacle(
            f"{_organization(row)} is parked by hand from {Month.of_day(row.month)} on: {row.why}", row.since,
            f"`ticketflow unpark {row.external_ref}` ends that", _DAY,
        )  # fmt: skip
    yield from _more(rows)


def _organization(row: Row[Any]) -> str:
    return f"organization {row.external_ref}"


def _more(rows: Sequence[Row[Any]]) -> Iterator[Obstacle]:
    left = rows[0].total - len(rows) if rows else 0
    if left:
        yield Obstacle(
            f"{counted(left, 'more organization')} parked", rows[-1].since, "`ticketflow status` lists them", _DAY
        )


def _held(connection: Connection) -> Iterator[Obstacle]:
    for row in connection.exec_driver_sql(_HELD):
        month = Month.of_day(row.month)
        yield Obstacle(
            f"payouts: {row.payouts:,} of {month} held", row.since,
            f"`ticketflow payouts list --month {month} --state held` says why; `ticketflow payouts release --month "
            f"{month}` sends what is held for review, `ticketflow payouts release REF` any other", LONGEST_STANDSTILL,
        )  # fmt: skip


def _shared(connection: Connection) -> Iterator[Obstacle]:
    """References of the provider that several payouts have."""
    for one in shared_references(connection, _NAMED):
        yield Obstacle(
            f"payouts: {len(one.payouts):,} are confirmed under one reference of the provider, {one.provider_ref}",
            one.since,
            f"ask the provider which of {', '.join(one.payouts[:_NAMED])} it paid, then `ticketflow payouts return` "
            "the others, or give each its own with `ticketflow payouts confirm REF --provider-ref …`",
        )


def _unbacked(connection: Connection) -> Iterator[Obstacle]:
    """Events that ask for money that no payout owes so; the relay holds what it finds."""
    for row in connection.exec_driver_sql(_UNBACKED, {"most": _NAMED}):
        yield Obstacle(
            f"payouts: event {row.event_id} is {row.state} and asks for {row.asked}: {row.objection}", row.occurred_at,
            f"find out who wrote it (`ticketflow outbox show {row.event_id}`), then `{row.out}`",
        )  # fmt: skip


def _standing_still(connection: Connection) -> Iterator[Obstacle]:
    """The first month that is settled and not closed, and those that are closed and not paid."""
    turn = connection.exec_driver_sql(_NOT_CLOSED).one_or_none()
    if turn is not None:
        month = Month.of_day(turn.month)
        yield Obstacle(
            f"{month} is {turn.state} and not closed", turn.settled_at,
            f"`ticketflow close {month}` closes it, or says why not", LONGEST_STANDSTILL,
        )  # fmt: skip
    first = first_paid_month(connection)
    for row in connection.exec_driver_sql(_NOT_PAID, {"from": None if first is None else first.first_day}):
        month = Month.of_day(row.month)
        yield Obstacle(
            f"{month} is closed and not paid", row.closed_at,
            f"see the last run of payouts, or materialize it for {month}", LONGEST_STANDSTILL,
        )  # fmt: skip


def _off_for_some(connection: Connection) -> Iterator[Obstacle]:
    """Money that waits although others are paid: a first month is named for some organizations only."""
    since = connection.exec_driver_sql(_OFF_FOR_SOME).scalar_one()
    if since is not None and (owed := waiting(connection)):
        yield Obstacle(
            f"payouts are off but for organizations with a month of their own, and {in_words(owed)} wait", since,
            "`ticketflow payouts from YYYY-MM` names the first month that is paid", LONGEST_STANDSTILL,
        )  # fmt: skip


def _before_first(connection: Connection, first_month: Month) -> Iterator[Obstacle]:
    """Movements that lie before the first month wherever their organization lives: nobody settles those."""
    earliest = first_month.window("Pacific/Kiritimati").starts_at
    row = connection.exec_driver_sql(_BEFORE_FIRST, {"first": earliest}).one()
    if row.oldest is not None:
        yield Obstacle(
            f"movements: some lie before {first_month}, the first month, such as {row.external_ref} at "
            f"{row.oldest.isoformat(timespec='seconds')}", row.recorded_at,
            "void them and enter them in a month that is settled here, or `ticketflow installation set first_month`",
        )  # fmt: skip


def _before_business(connection: Connection, first_month: Month, now: datetime | None) -> Iterator[Obstacle]:
    """Opening balances while no month is due: books begin with the first movement, and there has been none."""
    row = connection.exec_driver_sql(
        _OPENING_BEFORE_BUSINESS, {"first": first_month.window("UTC").ends_at}
    ).one_or_none()
    if row is None or months_over(connection, now or row.now, first_month):
        return
    last = last_month_over(connection, now or row.now)
    if last >= first_month:
        yield Obstacle(
            f"opening balances: {row.balances:,} wait, such as that of {row.external_ref}, because no month has any "
            "movement", row.since, f"`ticketflow settle {last}` begins the books with that month", _LONGEST_IDLENESS,
        )  # fmt: skip


def _withdrawn_currencies(connection: Connection) -> Iterator[Obstacle]:
    """Currencies that are not in use any more and still are those of organizations: no bank pays in them."""
    for row in connection.exec_driver_sql(_WITHDRAWN):
        who = "organization" if row.organizations == 1 else f"{row.organizations:,} organizations, such as"
        yield Obstacle(
            f"currency: {row.code} is that of {who} {row.external_ref}, and was in use until {row.last_day}", row.since,
            f"`ticketflow currency replace --all {row.code} --from-month YYYY-MM --to CODE --rate RATE` gives them "
            "another and converts what they are owed",
        )  # fmt: skip


def _anomalies(connection: Connection, now: datetime | None) -> Iterator[Obstacle]:
    """Movements that cannot all be right, and those that are dated later than now: they are taken, and looked at."""
    found = noted(connection)
    if found.since is not None:
        more = " or more" if found.at_least else ""
        yield Obstacle(
            f"movements: {found.count:,}{more} that look wrong, of {counted(found.organizations, 'organization')}, "
            f"such as {found.example}", found.since,
            "`ticketflow anomalies list` shows them, `ticketflow anomalies accept MOVEMENT` closes what was looked at",
            _DAY,
        )  # fmt: skip
    ahead, since = dated_ahead(connection, now)
    if since is not None:
        yield Obstacle(
            f"movements: {ahead:,} dated later than now", since,
            "`ticketflow anomalies list` names them; void them and enter them again", _DAY,
        )  # fmt: skip


_RUNNING = """
    SELECT month, pass AS number, started_at FROM settlement_pass WHERE state = 'RUNNING' ORDER BY month
"""

_GIVEN_UP = sql(__file__, "given_up", periods=PERIODS)

_PARKED = """
    SELECT external_ref, parked.*, count(*) OVER () AS total
    FROM (
        SELECT organization_id, min(month) AS month, count(*) AS months, min(since) AS since,
            (array_agg(error ORDER BY month))[1] AS why
        FROM parked_organization WHERE resolved_at IS NULL AND error IS NOT NULL
        GROUP BY organization_id
    ) AS parked JOIN organization ON organization.id = organization_id
    WHERE timezone = ANY (%(known)s::text[])
    ORDER BY since, organization_id LIMIT %(most)s::bigint
"""

_BY_HAND = """
    SELECT external_ref, month, reason AS why, since, count(*) OVER () AS total
    FROM parked_organization JOIN organization ON organization.id = organization_id
    WHERE resolved_at IS NULL AND reason IS NOT NULL
    ORDER BY since, organization_id LIMIT %(most)s::bigint
"""

_HELD = """
    SELECT month, count(*) AS payouts, min(created_at) AS since FROM payout WHERE state = 'HELD'
    GROUP BY month ORDER BY month
"""

_UNBACKED = sql(__file__, "unbacked", objection=OBJECTION, payout_of_event=PAYOUT_OF_EVENT)

_NOT_CLOSED = sql(__file__, "not_closed", periods=PERIODS)

_NOT_PAID = sql(__file__, "not_paid", periods=PERIODS)

_OFF_FOR_SOME = sql(__file__, "off_for_some", periods=PERIODS)

_BEFORE_FIRST = """
    SELECT min(occurred_at) AS oldest, (array_agg(external_ref ORDER BY occurred_at))[1] AS external_ref,
        (array_agg(recorded_at ORDER BY occurred_at))[1] AS recorded_at
    FROM money_movement WHERE occurred_at < %(first)s::timestamptz
"""

_OPENING_BEFORE_BUSINESS = sql(__file__, "opening_before_business", periods=PERIODS)

_WITHDRAWN = sql(__file__, "withdrawn", still_in_withdrawn=STILL_IN_WITHDRAWN)
