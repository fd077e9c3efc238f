"""The settlement benchmark's database: organizations in several zones and currencies, and months of movements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, text

from benchmarks.server import connect
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month

MONTH = Month(2026, 3)
NOW = datetime(2026, 4, 2, 5, tzinfo=UTC)
_UNFINISHED = "settlement_unfinished"


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is: `movements` in the month that is settled, `history` in each of the `months` before it."""

    organizations: int
    movements: int
    history: int
    months: int

    @property
    def database(self) -> str:
        """The name of its database."""
        return f"settlement_{self.organizations}_{self.movements}_{self.history}_{self.months}"

    @property
    def bytes_on_disk(self) -> int:
        """What a run takes at most: the databases of all sizes, the ledger, the log ahead of them."""
        movements = self.movements + self.history * self.months
        return 2 * 10**9 + 400 * (self.organizations + movements) + 250 * self.organizations * (self.months + 1)

    def scaled(self, organizations: int) -> Size:
        """As much for each organization, for another number of them."""
        share = organizations / self.organizations
        return Size(organizations, round(self.movements * share), round(self.history * share), self.months)


def load(server: EmbeddedServer, size: Size, progress: Callable[[str], None]) -> None:
    """Make the database of `size`, unless the cluster has it already; a load that was broken off starts anew."""
    cluster = connect(server, connections=1)
    with cluster.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if size.database in connection.execute(text("SELECT datname FROM pg_database")).scalars().all():
            return
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {_UNFINISHED} WITH (FORCE)")
        connection.exec_driver_sql(f"CREATE DATABASE {_UNFINISHED}")
        migrate(server.url(_UNFINISHED))
        database = connect(server, _UNFINISHED, connections=1)
        with database.connect().execution_options(isolation_level="AUTOCOMMIT") as inside:
            fill(inside, size, progress)
        database.dispose()
        connection.exec_driver_sql(f"ALTER DATABASE {_UNFINISHED} RENAME TO {size.database}")
        connection.exec_driver_sql("CHECKPOINT")
    cluster.dispose()


def fill(connection: Connection, size: Size, progress: Callable[[str], None]) -> None:
    """Put in what there is of `size`, into a database that is migrated and empty."""
    # As a replica applies rows: no triggers and no foreign keys, row by row, for what is right by construction.
    connection.exec_driver_sql(
        "SET session_replication_role = replica; SET synchronous_commit = off;"
        "SET work_mem = '256MB'; SET maintenance_work_mem = '1GB'"
    )
    progress(f"{size.organizations:,} organizations")
    connection.execute(text(_organizations(size)))
    index = connection.exec_driver_sql("SELECT pg_get_indexdef('money_movement_settlement_idx'::regclass)").scalar_one()
    connection.exec_driver_sql("DROP INDEX money_movement_settlement_idx")
    month, before = MONTH, []
    for _ in range(size.months):
        month = month.previous()
        before.append((month, size.history))
    offset = 0
    for month, movements in (*reversed(before), (MONTH, size.movements)):
        progress(f"{movements:,} movements of {month}")
        connection.execute(text(_movements(size, month, movements, offset)))
        offset += movements
    progress(f"index on {offset:,} movements")
    connection.exec_driver_sql(index)
    connection.exec_driver_sql("SELECT setval('money_movement_id_seq', (SELECT max(id) FROM money_movement))")
    progress("vacuum")
    connection.exec_driver_sql("VACUUM (ANALYZE)")


def add_ledger_history(connection: Connection, size: Size, progress: Callable[[str], None]) -> None:
    """Fill the ledger, which is empty, with the months before `MONTH`: settled, closed, an entry an organization."""
    progress(f"{size.months} months in the ledger")
    connection.exec_driver_sql(
        "SET session_replication_role = replica; SET synchronous_commit = off; SET maintenance_work_mem = '1GB';"
        "ALTER TABLE ledger_entry DROP CONSTRAINT ledger_entry_pkey"
    )
    # On day 2 of the month after, as the schedule does.
    read = size.history * size.months + size.movements // 15
    month = MONTH
    months = [month := month.previous() for _ in range(size.months)]
    for month in reversed(months):
        connection.execute(_LEDGER_MONTH, {"month": month.first_day})
        connection.execute(_CLOSED_MONTH, {"month": month.first_day, "last": read})
    index_ledger(connection, ("month", "organization_id"))
    connection.exec_driver_sql("RESET session_replication_role")
    connection.exec_driver_sql("VACUUM (ANALYZE) ledger_entry, settlement_period")


def index_ledger(connection: Connection, first: tuple[str, str]) -> None:
    """Give the ledger the primary key that begins with the columns `first`, in place of any other."""
    connection.exec_driver_sql(
        "SET maintenance_work_mem = '1GB'; ALTER TABLE ledger_entry DROP CONSTRAINT IF EXISTS ledger_entry_pkey;"
        f"ALTER TABLE ledger_entry ADD CONSTRAINT ledger_entry_pkey"
        f" PRIMARY KEY ({', '.join(first)}, currency, origin_month, sequence)"
    )


def add_late_movements(connection: Connection, size: Size, number: int) -> None:
    """`number` captures of `MONTH` that are recorded now, for as many organizations, evenly spread."""
    at = MONTH.window("UTC").starts_at + (MONTH.window("UTC").ends_at - MONTH.window("UTC").starts_at) / 2
    connection.execute(_LATE_MOVEMENTS, {"apart": max(1, size.organizations // number), "number": number, "at": at})


_LEDGER_MONTH = text("""
    INSERT INTO ledger_entry (organization_id, month, currency, origin_month, sequence, captures, refunds,
        chargebacks, fees, commission, commission_tax, net, settlement_pass, run_id)
    SELECT id, CAST(:month AS date), currency, CAST(:month AS date), 0, 1000 + id % 1000, 0, 0, 0, 100, 20,
        880 + id % 1000, 1, repeat('0', 36)
    FROM organization ORDER BY id
""")

_CLOSED_MONTH = text("""
    INSERT INTO settlement_period (month, state, settled_at, settled_by, closed_at, closed_by, closed_role, read_to)
    VALUES (CAST(:month AS date), 'CLOSED', now(), 'benchmark', now(), 'benchmark', 'benchmark',
        CAST(:last AS bigint) + 1)
""")

_LATE_MOVEMENTS = text("""
    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    SELECT 'late-' || gen_random_uuid(), id, 'CAPTURE', currency, 1000, commission_rate_bps, commission_tax_bps,
        CAST(:at AS timestamptz)
    FROM organization WHERE id % CAST(:apart AS bigint) = 0 ORDER BY id LIMIT CAST(:number AS bigint)
""")


def _organizations(size: Size) -> str:
    return f"""
        INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
            joined_on, left_on)
        SELECT number, 'organization-' || number, 'Organization ' || number, timezone, currency,
            500 + number % 6 * 100, tax, DATE '2020-01-01', CASE WHEN number % 100 = 0 THEN DATE '2025-01-31' END
        FROM generate_series(1, {size.organizations}::bigint) AS number
        JOIN (VALUES
            (0, 'Europe/Madrid', 'EUR', 2100), (1, 'Europe/London', 'GBP', 2000), (2, 'Asia/Tokyo', 'JPY', 1000),
            (3, 'America/New_York', 'USD', 0), (4, 'Pacific/Auckland', 'NZD', 1500), (5, 'Asia/Kolkata', 'INR', 1800),
            (6, 'America/Sao_Paulo', 'BRL', 500), (7, 'Asia/Kuwait', 'KWD', 0), (8, 'Europe/Paris', 'EUR', 2000),
            (9, 'America/Mexico_City', 'MXN', 1600)
        ) AS country (place, timezone, currency, tax) ON place = number % 10
        ORDER BY number
    """


def _movements(size: Size, month: Month, movements: int, offset: int) -> str:
    """The statement that writes a month's movements in order of time, with ids from `offset` + 1.

    The first `bases` are captures of as many organizations; each later one falls on one of those again, on some much
    oftener than on others, and one in ten of them is a refund, chargeback or fee. Multiplying by a prime scatters them
    over the organizations, as life does.
    """
    bases = min(size.organizations, movements * 2 // 3)
    window = month.window("Europe/Madrid")
    return f"""
        INSERT INTO money_movement (id, external_ref, organization_id, kind, reverses_id, currency, amount,
            commission_rate_bps, commission_tax_bps, reason, occurred_at, recorded_at)
        OVERRIDING SYSTEM VALUE
        SELECT {offset} + number, 'movement-' || lpad(({offset} + number)::text, 10, '0'), organization.id, kind,
            CASE WHEN kind IN ('REFUND', 'CHARGEBACK') THEN {offset} + base END,
            CASE WHEN base % 20 = 0 THEN 'USD' ELSE organization.currency END,
            CASE WHEN kind = 'CAPTURE' THEN 1 ELSE -1 END * (100 + number * 48271 % 20000),
            CASE WHEN kind = 'FEE' THEN 0 ELSE commission_rate_bps END,
            CASE WHEN kind = 'FEE' THEN 0 ELSE commission_tax_bps END,
            CASE WHEN kind = 'FEE' THEN 'monthly fee' END, at, at + interval '1 second'
        FROM (
            SELECT number, CASE WHEN number <= {bases} THEN number
                ELSE 1 + least(number * 48271 % 2147483647, number * 69621 % 2147483647) % {bases} END AS base
            FROM generate_series(1, {movements}::bigint) AS number
        ) AS numbered
        CROSS JOIN LATERAL (
            SELECT CASE WHEN number <= {bases} THEN 'CAPTURE' WHEN number % 60 < 3 THEN 'REFUND'
                    WHEN number % 60 = 3 THEN 'CHARGEBACK' WHEN number % 60 < 6 THEN 'FEE' ELSE 'CAPTURE' END AS kind,
                TIMESTAMPTZ '{window.starts_at}' + (TIMESTAMPTZ '{window.ends_at}' - TIMESTAMPTZ '{window.starts_at}')
                    * (number::float8 / {movements + 1}) AS at
        ) AS drawn
        JOIN organization ON organization.id = 1 + (base * 1000003 + {offset}) % {size.organizations}
        ORDER BY number
    """


def forget_everything(connection: Connection, *, begun: bool) -> None:
    """Take back all that was settled, and what came late; then the month is `begun` or not."""
    # Truncating what is append-only takes a superuser who switches the triggers off.
    connection.exec_driver_sql("SET session_replication_role = replica")
    connection.exec_driver_sql("TRUNCATE ledger_entry, settlement_period, settlement_window, outbox_event CASCADE")
    connection.exec_driver_sql("DELETE FROM money_movement WHERE external_ref LIKE 'late-%%'")
    connection.exec_driver_sql("RESET session_replication_role")
    if begun:
        connection.execute(BEGUN, {"month": MONTH.first_day})


def fingerprint(engine: Engine) -> str:
    """The business columns of the month's ledger in one value."""
    with engine.connect() as connection:
        row = connection.execute(
            text("""
                SELECT count(*), sum(hashtextextended(concat_ws('|', organization_id, month, currency, origin_month,
                    sequence, captures, refunds, chargebacks, fees, commission, commission_tax, net), 0))
                FROM ledger_entry WHERE month = :month
            """),
            {"month": MONTH.first_day},
        ).one()
    return f"{row[0]:,} rows, {row[1]}"


BEGUN = text("INSERT INTO settlement_period (month) VALUES (:month)")
