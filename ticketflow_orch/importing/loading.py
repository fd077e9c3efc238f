"""From staged rows to the tables: judged as a whole, then inserted as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from ticketflow_orch.importing.currencies import unusual_currencies
from ticketflow_orch.importing.format import (
    EVENTS,
    KINDS,
    MONEY_MOVEMENTS,
    OPENING_BALANCES,
    ORGANIZATIONS,
    RESERVATIONS,
    Batch,
    Kind,
)
from ticketflow_orch.importing.history import history_to_be_paid
from ticketflow_orch.importing.linking import link
from ticketflow_orch.importing.oddities import odd_but_allowed
from ticketflow_orch.importing.problems import ProblemFile
from ticketflow_orch.importing.rules import judge
from ticketflow_orch.importing.staging import Progress, Staging
from ticketflow_orch.months import Month


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of each kind."""

    organizations: int
    events: int
    reservations: int
    money_movements: int
    opening_balances: int = 0

    @property
    def total(self) -> int:
        """Rows of all kinds together."""
        return sum(getattr(self, kind.name) for kind in KINDS)

    def tables(self) -> list[str]:
        """The tables that the rows are in."""
        return [kind.table for kind in KINDS if getattr(self, kind.name)]

    def __str__(self) -> str:
        # What few imports hold is told of those that do.
        told = KINDS if self.opening_balances else KINDS[:-1]
        *most, last = (f"{getattr(self, kind.name):,} {kind.name.replace('_', ' ')}" for kind in told)
        return f"{', '.join(most)} and {last}"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did: rows that are new, and rows that were there with the same content.

    `import_id` is what the new rows carry and an undo asks for; None when nothing was new, or where it was but a check.
    `warnings` are sentences about new rows that were taken and should be looked at, `notes` about what is allowed and
    yet odd.
    """

    import_id: int | None
    source: str
    new: Counts
    existing: Counts
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.new.total:
            rows = f"all {self.existing.total:,} rows are there already" if self.existing.total else "there are no rows"
            return f"Nothing new in {self.source}: {rows}."
        there = f" {self.existing.total:,} more rows were there already." if self.existing.total else ""
        if self.import_id is None:
            return f"Nothing is wrong with {self.source}, and nothing was imported: it would bring {self.new}.{there}"
        return f"Import {self.import_id} of {self.source} brought {self.new}.{there}"


# An event that is closed to new reservations while we insert some would make their trigger refuse them.
_HOLD_EVENTS = """
    WITH held AS MATERIALIZED (
        SELECT id FROM event
        WHERE id IN (
            SELECT event_id FROM linked_reservation WHERE present_id IS NULL AND status = 'ACTIVE' AND NOT faulty)
        ORDER BY id FOR SHARE
    )
    SELECT count(*) FROM held
"""

_RECORD = """
    INSERT INTO data_import (source, organizations, events, reservations, money_movements, opening_balances)
    VALUES (%(source)s::text, %(organizations)s::bigint, %(events)s::bigint,
        %(reservations)s::bigint, %(money_movements)s::bigint, %(opening_balances)s::bigint)
    RETURNING id
"""

_INSERT = {
    ORGANIZATIONS: """
        INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
            joined_on, left_on, contact_email, locale, payouts_from, import_id)
        SELECT id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
            joined_on, left_on, contact_email, locale, CAST(payouts_from || '-01' AS date),
            %(import_id)s::bigint
        FROM linked_organization WHERE present_id IS NULL ORDER BY line
    """,
    EVENTS: """
        INSERT INTO event (id, public_id, external_ref, organization_id, title, status, starts_at, ends_at, timezone,
            venue, closed_at, import_id)
        SELECT id, derived_id((SELECT id FROM installation), 'event', external_ref), external_ref, organization_id,
            title, status, starts_at, ends_at, timezone, venue, CASE status WHEN 'CLOSED' THEN ends_at END,
            %(import_id)s::bigint
        FROM linked_event WHERE present_id IS NULL ORDER BY line
    """,
    RESERVATIONS: """
        INSERT INTO reservation (id, public_ref, event_id, buyer_email, quantity, status, created_at, expires_at,
            payment_started_at, confirmed_at, expired_at, import_id)
        SELECT id, external_ref, event_id, buyer_email, quantity, status, created_at, expires_at,
            payment_started_at, confirmed_at, CASE status WHEN 'EXPIRED' THEN expires_at END,
            %(import_id)s::bigint
        FROM linked_reservation WHERE present_id IS NULL ORDER BY line
    """,
    # One statement, because a movement may reverse one that comes later in the file. What tells the order of recording
    # is drawn here, under the table's lock, and takes the place of the ids by which staged rows know each other.
    MONEY_MOVEMENTS: """
        WITH drawn AS MATERIALIZED (
            SELECT staged_id, nextval('money_movement_id_seq') AS id
            FROM (SELECT id AS staged_id FROM linked_money_movement WHERE present_id IS NULL ORDER BY line) AS fresh
        )
        INSERT INTO money_movement (id, external_ref, organization_id, reservation_id, kind, is_void, reverses_id,
            currency, amount, commission_rate_bps, commission_tax_bps, reason, occurred_at, import_id)
        OVERRIDING SYSTEM VALUE
        SELECT drawn.id, external_ref, organization_id, reservation_id, kind, is_void,
            coalesce(target.id, reverses_id), currency, amount, commission_rate_bps, commission_tax_bps, reason,
            occurred_at, %(import_id)s::bigint
        FROM linked_money_movement AS linked
        JOIN drawn ON drawn.staged_id = linked.id
        LEFT JOIN drawn AS target ON target.staged_id = linked.reverses_id
        ORDER BY drawn.id
    """,
    OPENING_BALANCES: """
        INSERT INTO opening_balance (id, organization_id, currency, amount, import_id)
        SELECT id, organization_id, currency, amount, %(import_id)s::bigint
        FROM linked_opening_balance WHERE present_id IS NULL ORDER BY line
    """,
}


def import_batches(
    connection: Connection,
    source: str,
    batches: Iterable[Batch],
    first_month: Month,
    progress: Progress | None = None,
    *,
    problems: ProblemFile | None = None,
) -> ImportResult:
    """Import all rows of `batches` inside the turn that `connection` has (see `turn.import_turn`).

    Batches may come in any order and several for one kind; lines number the rows of a kind. `source` says to readers
    of data_import where the rows are from. When nothing is new, nothing is written. `problems` gets all of them
    before ImportRefused is raised.

    Raises:
        ImportRefused: rows are bad; lists them.
        InvalidInput: a batch cannot be read.
    """
    staging = Staging(connection, progress, problems)
    for batch in batches:
        staging.copy(batch)
    link(staging, first_month)
    connection.exec_driver_sql(_HOLD_EVENTS)
    judge(staging)
    staging.findings.refuse_any()
    notes = odd_but_allowed(staging)
    existing = {kind: _count_existing(connection, kind) for kind in KINDS}
    new = {kind: staging.rows[kind] - existing[kind] for kind in KINDS}
    import_id = None
    warnings = (*unusual_currencies(connection), *history_to_be_paid(connection))
    if any(new.values()):
        counts = {kind.name: new[kind] for kind in KINDS}
        import_id = connection.exec_driver_sql(_RECORD, {"source": source, **counts}).scalar_one()
        for kind in KINDS:
            if new[kind]:
                connection.exec_driver_sql(_INSERT[kind], {"import_id": import_id})
                staging.report(f"loading {kind.name}", new[kind])
    return ImportResult(import_id, source, _counts(new), _counts(existing), warnings, notes)


def _count_existing(connection: Connection, kind: Kind) -> int:
    query = f"SELECT count(*) FROM linked_{kind.table} WHERE present_id IS NOT NULL"  # noqa: S608
    return int(connection.exec_driver_sql(query).scalar_one())


def _counts(rows: dict[Kind, int]) -> Counts:
    return Counts(**{kind.name: rows[kind] for kind in KINDS})
