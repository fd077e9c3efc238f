"""A database whose passes were cut off by its clock, as the code of revision 0010 would have left it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL

from tests.support.oracle import AMOUNTS, Key, Movement, amounts
from tests.support.rows import instant
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.months import Month

REVISION = "0010"
ZONE = "Europe/Madrid"
NOVEMBER, DECEMBER = Month(2025, 11), Month(2025, 12)
JANUARY, FEBRUARY, MARCH, APRIL, MAY = (Month(2026, number) for number in range(1, 6))
ORGANIZATIONS = range(1, 8)
# By hand for January and February: one before it was closed, one behind it, by a clock that went back meanwhile.
PARKED = {4: "2026-02-01T10:00", 7: "2026-02-02T06:30:20"}
# Two chunks a pass; the last one is open-ended.
_CHUNKS = ((1, 3), (4, None))

Chunk = tuple[Month, int, int | None]


class OldBooks:
    """What the code of that version knew, and how it acted on it, a step at a time in the order of what happened.

    `recorded` is what was there when a pass began, whatever its clock says; ids are free, and so are instants.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._recorded: dict[int, tuple[Movement, datetime]] = {}
        self._done: list[tuple[Month, datetime, bool]] = []
        self._closed: dict[Month, datetime] = {}
        # Nothing here is what the application or a run does: triggers would say when it was recorded, and refuse.
        self._run("SET session_replication_role = replica")
        for organization in ORGANIZATIONS:
            self._run(
                "INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps,"
                " commission_tax_bps, joined_on)"
                " VALUES (:id, 'org-' || CAST(:id AS bigint), 'Hall', :zone, 'EUR', 1000, 2000, '2020-01-01')",
                id=organization,
                zone=ZONE,
            )

    def record(self, number: int, organization: int, amount: int, at: tuple[str, str], currency: str = "EUR") -> None:
        """A capture at 12.5 % and 20 %; `at`: when it occurred, and when it was recorded."""
        occurred_at, recorded_at = map(instant, at)
        movement = Movement(number, organization, "CAPTURE", currency, amount, 1250, 2000, occurred_at)
        self._recorded[number] = movement, recorded_at
        self._insert(
            "money_movement", id=number, external_ref=f"old-{number}", organization_id=organization,
            kind="CAPTURE", currency=currency, amount=amount, commission_rate_bps=1250, commission_tax_bps=2000,
            occurred_at=occurred_at, recorded_at=recorded_at,
        )  # fmt: skip

    def settle(self, month: Month, number: int, cutoff: str, state: str = "DONE", *, chunks: int = 2) -> None:
        """A pass that has done the first `chunks` of its own month's, and all that came late for closed months."""
        at = instant(cutoff)
        self._run("INSERT INTO settlement_period (month) VALUES (:month) ON CONFLICT DO NOTHING", month=month.first_day)
        late = self._late(month, at)
        watched = {origin for origin, _, _ in late} | {month}
        for origin in watched:
            window = origin.window(ZONE)
            self._run(
                "INSERT INTO settlement_window VALUES (:month, :zone, :starts, :ends) ON CONFLICT DO NOTHING",
                month=origin.first_day, zone=ZONE, starts=window.starts_at, ends=window.ends_at,
            )  # fmt: skip
        self._insert(
            "settlement_pass", month=month.first_day, **{"pass": number}, cutoff=at, state=state, planned_at=at,
            started_at=at, finished_at=None if state == "RUNNING" else at + timedelta(minutes=2),
        )  # fmt: skip
        own: list[Chunk] = [(month, low, high) for low, high in _CHUNKS]
        done = [*late, *own[:chunks]]
        for chunk in done:
            self._do(month, number, at, chunk)
        if state == "RUNNING":
            for _, low, high in own[chunks:]:
                self._insert(
                    "settlement_chunk", month=month.first_day, **{"pass": number}, origin_month=month.first_day,
                    low_id=low, high_id=high,
                )  # fmt: skip
        if state == "DONE":
            self._done.append((month, at, month.previous() in self._closed))
            self._run(_TOTAL, month=month.first_day)
            self._run(
                "UPDATE settlement_period SET state = 'SETTLED', settled_at = :at, settled_by = 'test'"
                " WHERE month = :month AND state = 'OPEN'",
                month=month.first_day, at=at + timedelta(minutes=2),
            )  # fmt: skip

    def balance(self, month: Month, organizations: Collection[int]) -> None:
        """Begin to close the month, and write the balances of these organizations."""
        self._run("UPDATE settlement_period SET state = 'CLOSING' WHERE month = :month", month=month.first_day)
        for organization in organizations:
            self._run(_BALANCE, month=month.first_day, organization=organization)
            self._run(
                "UPDATE opening_balance SET balance_month = :month"
                " WHERE organization_id = :id AND balance_month IS NULL",
                month=month.first_day, id=organization,
            )  # fmt: skip

    def close(self, month: Month, closed_at: str) -> None:
        """Close the month, whose balances are written, and pay what they say."""
        self._closed[month] = instant(closed_at)
        self._run(
            "UPDATE settlement_period SET state = 'CLOSED', closed_at = :at, closed_by = 'test', closed_role = 'test'"
            " WHERE month = :month",
            month=month.first_day, at=self._closed[month],
        )  # fmt: skip
        self._run(
            "INSERT INTO payout (organization_id, currency, month, amount, state, answered_at)"
            " SELECT organization_id, currency, month, payable, 'CONFIRMED', :at FROM organization_balance"
            " WHERE month = :month AND payable > 0",
            month=month.first_day, at=self._closed[month],
        )  # fmt: skip
        self._run(
            "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at,"
            " state, available_at, ended_at)"
            " SELECT 'payout', CAST(public_id AS text), 'PayoutRequested', jsonb_build_object("
            " 'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),"
            " 'currency', payout.currency, 'amount', amount), 'PayoutRequested:' || public_id, :at, 'DELIVERED',"
            " NULL, :at"
            " FROM payout JOIN organization ON organization.id = organization_id WHERE month = :month",
            month=month.first_day, at=self._closed[month],
        )  # fmt: skip

    def park(self, organization: int, since: str, resolved_at: str) -> None:
        """Park the organization by hand from January on, and unpark it."""
        self._insert(
            "parked_organization", organization_id=organization, month=JANUARY.first_day, reason="disputed",
            parked_by="test", since=instant(since), resolved_at=instant(resolved_at), resolved_by="test",
        )  # fmt: skip

    def open_with(self, organization: int, amount: int) -> None:
        """A balance that the organization brings along."""
        self._insert("opening_balance", organization_id=organization, currency="EUR", amount=amount)

    def finish(self) -> None:
        """Let the sequence go on after the last id."""
        self._run("SELECT setval('money_movement_id_seq', (SELECT max(id) FROM money_movement))")
        self._run("SET session_replication_role = origin")

    def _late(self, month: Month, cutoff: datetime) -> list[Chunk]:
        """What the first month that is not closed takes in: who has something recorded since a month was looked at."""
        if month.previous() not in self._closed:
            return []
        first = min(self._closed)
        found: dict[Month, set[int]] = defaultdict(set)
        for movement, recorded_at in self._recorded.values():
            origin = Month.of_instant(movement.occurred_at, ZONE)
            looked_at = [
                at for own, at, watched in self._done if own == max(origin, first) or (watched and own > origin)
            ]
            if origin < month and max(looked_at) <= recorded_at < cutoff:
                found[origin].add(movement.organization_id)
        return [(origin, min(ids), max(ids)) for origin, ids in sorted(found.items())]

    def _do(self, month: Month, number: int, cutoff: datetime, chunk: Chunk) -> None:
        """Post recomputed minus posted for a chunk, and mark it done."""
        origin, low, high = chunk
        members = [each for each in ORGANIZATIONS if each >= low and (high is None or each <= high)]
        read = [movement for movement, recorded_at in self._recorded.values() if recorded_at < cutoff]
        recomputed = {
            key: sums for key, sums in self._amounts(read).items() if key[1] == str(origin) and key[0] in members
        }
        if origin == month:
            idle = {(each, str(month), "EUR"): (0,) * len(AMOUNTS) for each in members}
            recomputed = idle | recomputed
        new = adjusted = existing = 0
        for key in sorted(recomputed):
            posted = self._posted(key)
            if posted is None and origin == month:
                self._post(month, number, cutoff, key, recomputed[key])
                new += 1
                continue
            difference = tuple(a - b for a, b in zip(recomputed[key], posted or (0,) * 7, strict=True))
            existing += posted is not None
            if any(difference):
                self._post(month, number, cutoff, key, difference)
                adjusted += 1
        self._insert(
            "settlement_chunk", month=month.first_day, **{"pass": number}, origin_month=origin.first_day, low_id=low,
            high_id=high, state="DONE", rows_new=new, rows_existing=existing, rows_adjusted=adjusted, worker="test",
            finished_at=cutoff + timedelta(minutes=1),
        )  # fmt: skip

    def _amounts(self, movements: Sequence[Movement]) -> dict[Key, tuple[int, ...]]:
        return amounts(movements, dict.fromkeys(ORGANIZATIONS, ZONE))

    def _posted(self, key: Key) -> tuple[int, ...] | None:
        sums = ", ".join(f"sum({name})" for name in AMOUNTS)
        row = self._connection.execute(
            text(
                f"SELECT count(*), {sums} FROM ledger_entry"
                " WHERE organization_id = :id AND origin_month = :origin AND currency = :currency"
            ),
            {"id": key[0], "origin": _day(key[1]), "currency": key[2]},
        ).one()
        return tuple(map(int, row[1:])) if row[0] else None

    def _post(self, month: Month, number: int, cutoff: datetime, key: Key, sums: tuple[int, ...]) -> None:
        organization, origin, currency = key
        place = {"id": organization, "month": month.first_day, "origin": _day(origin), "currency": currency}
        sequence = self._connection.execute(
            text(
                "SELECT count(*) FROM ledger_entry WHERE organization_id = :id AND month = :month"
                " AND origin_month = :origin AND currency = :currency"
            ),
            place,
        ).scalar_one()
        self._insert(
            "ledger_entry", organization_id=organization, month=month.first_day, currency=currency,
            origin_month=_day(origin), sequence=sequence, **dict(zip(AMOUNTS, sums, strict=True)),
            reason=None if (sequence, origin) == (0, str(month)) else "recomputed minus posted",
            settlement_pass=number, posted_at=cutoff + timedelta(minutes=1), run_id="old",
        )  # fmt: skip

    def _insert(self, table: str, **values: Any) -> None:
        columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
        self._run(f"INSERT INTO {table} ({columns}) VALUES ({places})", **values)

    def _run(self, statement: str, **parameters: Any) -> None:
        self._connection.execute(text(statement), parameters)


def _day(month: str) -> date:
    return date.fromisoformat(f"{month}-01")


_TOTAL = f"""
    INSERT INTO settlement_total
    SELECT month, currency, count(*) FILTER (WHERE origin_month = month AND sequence = 0),
        {", ".join(f"sum({name})" for name in AMOUNTS)}
    FROM ledger_entry WHERE month = :month GROUP BY month, currency
    ON CONFLICT (month, currency) DO UPDATE SET
        (organizations, {", ".join(AMOUNTS)}) = (excluded.organizations, {", ".join(f"excluded.{n}" for n in AMOUNTS)})
"""

_BALANCE = """
    INSERT INTO organization_balance
        (organization_id, currency, month, previous_month, opening, net, returned, due, payable, closing)
    SELECT :organization, currency, :month, previous_month, opening, net, 0, opening + net,
        greatest(opening + net, 0), least(opening + net, 0)
    FROM (
        SELECT entry.currency, before.month AS previous_month, CAST(sum(net) AS bigint) AS net,
            coalesce(before.closing, (
                SELECT amount FROM opening_balance AS brought
                WHERE brought.organization_id = :organization AND brought.currency = entry.currency), 0) AS opening
        FROM ledger_entry AS entry
        LEFT JOIN LATERAL (
            SELECT month, closing FROM organization_balance AS balance
            WHERE balance.organization_id = :organization AND balance.currency = entry.currency
            ORDER BY month DESC LIMIT 1) AS before ON true
        WHERE entry.organization_id = :organization AND entry.month <= :month
            AND entry.month > coalesce(CAST(before.month AS date), '-infinity')
        GROUP BY entry.currency, before.month, before.closing) AS summed
"""


def database_before_order(url: URL) -> Engine:
    """December and January are closed, February is being closed, March is settled, April is being settled.

    November had nothing when December was closed. Late movements lie on both sides of every cutoff; two imports drew
    their ids before a cutoff and inserted behind it; after February's pass the clock stepped back for a moment.
    """
    migrate(url, REVISION)
    engine = connect_engine(url, "pytest", connections=20)
    with engine.begin() as connection:
        _fill(OldBooks(connection))
    return engine


def _fill(books: OldBooks) -> None:
    books.open_with(1, 500)
    for organization in ORGANIZATIONS:
        books.record(organization, organization, 100_007 * organization, ("2025-12-10T10:00", "2025-12-10T10:00"))
    books.record(8, 3, 40_003, ("2025-12-11T10:00", "2025-12-11T10:00"), "USD")
    books.settle(DECEMBER, 1, "2026-01-02T05:00")
    books.balance(DECEMBER, ORGANIZATIONS)
    books.close(DECEMBER, "2026-01-02T06:30")

    books.record(11, 1, 1_009, ("2025-12-12T10:00", "2026-01-15T10:00"))
    books.record(12, 2, 1_013, ("2025-11-12T10:00", "2026-01-20T10:00"))
    for organization in ORGANIZATIONS:
        books.record(12 + organization, organization, 50_021, ("2026-01-10T10:00", "2026-01-21T10:00"))
    books.park(4, PARKED[4], "2026-03-01T10:00")
    # 30 and 31 are drawn by an import, which inserts them behind the cutoff.
    books.record(32, 5, 1_019, ("2026-01-31T10:00", "2026-02-02T04:55"))
    books.settle(JANUARY, 1, "2026-02-02T05:00")
    books.record(30, 1, 1_021, ("2025-12-13T10:00", "2026-02-02T05:10"))
    books.record(31, 2, 1_031, ("2026-01-13T10:00", "2026-02-02T05:10"))
    books.balance(JANUARY, set(ORGANIZATIONS) - set(PARKED))
    books.close(JANUARY, "2026-02-02T06:30")
    books.park(7, PARKED[7], "2026-03-01T10:00")

    for organization in ORGANIZATIONS:
        books.record(32 + organization, organization, 60_037, ("2026-02-10T10:00", "2026-02-10T10:00"))
    # Of the numbers up to 50 another import draws 47 and 48.
    books.record(49, 6, 1_033, ("2026-02-28T10:00", "2026-03-02T04:55"))
    books.settle(FEBRUARY, 1, "2026-03-02T05:00")
    books.record(47, 5, 1_039, ("2026-01-14T10:00", "2026-03-02T05:10"))
    books.record(48, 3, 1_049, ("2026-02-14T10:00", "2026-03-02T05:10"))
    books.record(50, 6, 1_051, ("2026-01-15T10:00", "2026-03-02T04:59:55"))
    books.balance(FEBRUARY, (1, 2, 3))
    for number, occurred_at in enumerate(("2025-11-20", "2025-12-20", "2026-01-20", "2026-02-20"), 51):
        books.record(number, number - 50, 1_061, (f"{occurred_at}T10:00", "2026-03-10T10:00"))

    for organization in ORGANIZATIONS:
        books.record(60 + organization, organization, 70_001, ("2026-03-10T10:00", "2026-03-11T10:00"))
    books.settle(MARCH, 1, "2026-04-02T05:00", "GIVEN_UP", chunks=1)
    books.record(68, 2, 1_063, ("2026-03-20T10:00", "2026-04-02T06:00"))
    books.settle(MARCH, 2, "2026-04-02T08:00")
    books.record(69, 3, 1_069, ("2026-03-21T10:00", "2026-04-05T10:00"))

    for organization in ORGANIZATIONS:
        books.record(70 + organization, organization, 80_021, ("2026-04-10T10:00", "2026-04-11T10:00"))
    books.settle(APRIL, 1, "2026-05-02T05:00", "RUNNING", chunks=1)
    books.record(78, 1, 1_087, ("2026-04-12T10:00", "2026-05-03T10:00"))
    books.record(79, 6, 1_091, ("2026-04-12T10:00", "2026-05-03T10:00"))
    books.finish()
