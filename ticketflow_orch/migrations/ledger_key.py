"""The unique key of the ledger, brought to a live `ledger_entry` that may hold duplicates.

Old writers know no `sequence`; they work on through every step, until the key exists and refuses their duplicates.
Amounts never change: the trigger lets an UPDATE touch `sequence` only, and only to give a number to a row that has
none or to move a row off a number that another row holds too.
"""

from __future__ import annotations

from psycopg.errors import UniqueViolation
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from ticketflow_orch.migrations.online import build_index, drop_index, with_short_lock

KEY = ("organization_id", "month", "currency", "origin_month", "sequence")
MONTH_KEY = ("month", "organization_id", "currency", "origin_month", "sequence")
INDEX = "ledger_entry_key"
MONTH_INDEX = "ledger_entry_month_key"
NUMBERING_INDEX = "ledger_entry_numbering_idx"
CONSTRAINT = "ledger_entry_pkey"

_LEARN_SEQUENCE = """
ALTER TABLE ledger_entry ADD COLUMN IF NOT EXISTS sequence integer;
CREATE OR REPLACE FUNCTION ledger_entry_numbering() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    renumbered ledger_entry := OLD;
BEGIN
    renumbered.sequence := NEW.sequence;
    IF NEW IS DISTINCT FROM renumbered
        OR NEW.sequence IS NULL
        OR (OLD.sequence IS NOT NULL AND (
            SELECT count(*) FROM ledger_entry AS same
            WHERE (same.organization_id, same.month, same.currency, same.origin_month, same.sequence)
                = (OLD.organization_id, OLD.month, OLD.currency, OLD.origin_month, OLD.sequence)) < 2)
    THEN
        RAISE EXCEPTION 'ledger_entry is append-only: correct it by an adjustment'
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS ledger_entry_append_only ON ledger_entry;
DROP TRIGGER IF EXISTS ledger_entry_numbering ON ledger_entry;
CREATE TRIGGER ledger_entry_append_only BEFORE DELETE OR TRUNCATE ON ledger_entry FOR EACH STATEMENT
    EXECUTE FUNCTION refuse('ledger_entry is append-only: correct it by an adjustment');
CREATE TRIGGER ledger_entry_numbering BEFORE UPDATE ON ledger_entry FOR EACH ROW
    EXECUTE FUNCTION ledger_entry_numbering()
"""

# One statement numbers a batch: the rows without a number, and all but the first of those that share one, continue
# after the highest number of their key. The range stands in the UPDATE as well, or it would read the whole table.
_NUMBER_BATCH = text("""
    WITH batch AS MATERIALIZED (
        SELECT coalesce((
            SELECT organization_id FROM ledger_entry WHERE organization_id > CAST(:after AS bigint)
            ORDER BY organization_id OFFSET CAST(:size AS bigint) LIMIT 1), CAST(:end AS bigint)) AS last
    ), ranked AS (
        SELECT ctid AS row_id, organization_id, month, currency, origin_month, posted_at,
            sequence IS NULL OR row_number() OVER (
                PARTITION BY organization_id, month, currency, origin_month, sequence ORDER BY posted_at, ctid) > 1
                AS unnumbered,
            coalesce(max(sequence) OVER (PARTITION BY organization_id, month, currency, origin_month), -1) AS highest
        FROM ledger_entry
        WHERE organization_id > CAST(:after AS bigint) AND organization_id <= (SELECT last FROM batch)
    ), numbered AS (
        SELECT row_id, highest + row_number() OVER (
            PARTITION BY organization_id, month, currency, origin_month ORDER BY posted_at, row_id) AS next
        FROM ranked WHERE unnumbered
    ), updated AS (
        UPDATE ledger_entry SET sequence = next FROM numbered
        WHERE ctid = row_id
            AND organization_id > CAST(:after AS bigint) AND organization_id <= (SELECT last FROM batch)
        RETURNING 1
    )
    SELECT last, (SELECT count(*) FROM updated) AS numbered FROM batch
""")

_KEEP_STRICT = """
DROP TRIGGER IF EXISTS ledger_entry_append_only ON ledger_entry;
DROP TRIGGER IF EXISTS ledger_entry_numbering ON ledger_entry;
DROP FUNCTION IF EXISTS ledger_entry_numbering();
CREATE TRIGGER ledger_entry_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entry FOR EACH STATEMENT
    EXECUTE FUNCTION refuse('ledger_entry is append-only: correct it by an adjustment')
"""


def expand(connection: Connection) -> None:
    """Add `sequence`, number every row, build the unique index. Old and new writers both work afterwards."""
    learn_sequence(connection)
    number_rows(connection)
    build_index(connection, INDEX, "ledger_entry", KEY, unique=True)


def contract(connection: Connection) -> None:
    """Number what old writers added since, then make the index the primary key and the table strict again."""
    # Once the key is attached the table is strict, and refuses even to be numbered.
    if not _is_attached(connection):
        require_sequence(connection)
        attach_key(connection)
    drop_index(connection, NUMBERING_INDEX)


def begin_with_month(connection: Connection) -> None:
    """Build the key that begins with the month beside the one that begins with the organization, then take its place.

    Writers name the constraint, never its columns, so those of old code work on before, during and after.
    """
    if _is_by_month(connection):
        return
    build_index(connection, MONTH_INDEX, "ledger_entry", MONTH_KEY, unique=True)
    switch = (
        f"ALTER TABLE ledger_entry DROP CONSTRAINT {CONSTRAINT};"
        f"ALTER TABLE ledger_entry ADD CONSTRAINT {CONSTRAINT} PRIMARY KEY USING INDEX {MONTH_INDEX}"
    )
    with_short_lock(connection, switch, table="ledger_entry")


def learn_sequence(connection: Connection) -> None:
    """Add `sequence`, empty, let rows be numbered but not changed, and build the index that numbering needs."""
    with_short_lock(connection, _LEARN_SEQUENCE, table="ledger_entry")
    build_index(connection, NUMBERING_INDEX, "ledger_entry", KEY[:-1])


def require_sequence(connection: Connection) -> None:
    """Let no row be without a number any more: neither those of old writers so far nor those to come."""
    # With a default, rows of old writers carry a number from now on, and the index refuses their duplicates.
    with_short_lock(connection, "ALTER TABLE ledger_entry ALTER COLUMN sequence SET DEFAULT 0", table="ledger_entry")
    number_rows(connection)
    with_short_lock(
        connection,
        "ALTER TABLE ledger_entry DROP CONSTRAINT IF EXISTS ledger_entry_sequence_check;"
        "ALTER TABLE ledger_entry ADD CONSTRAINT ledger_entry_sequence_check"
        " CHECK (sequence IS NOT NULL AND sequence >= 0) NOT VALID",
        table="ledger_entry",
    )
    connection.exec_driver_sql("ALTER TABLE ledger_entry VALIDATE CONSTRAINT ledger_entry_sequence_check")
    with_short_lock(connection, "ALTER TABLE ledger_entry ALTER COLUMN sequence SET NOT NULL", table="ledger_entry")


def attach_key(connection: Connection, *, attempts: int = 30, pause: float = 1.0) -> None:
    """Make the index the table's primary key, in short tries; until one succeeds the index enforces the same."""
    attach = f"ALTER TABLE ledger_entry ADD CONSTRAINT {CONSTRAINT} PRIMARY KEY USING INDEX {INDEX};"
    with_short_lock(connection, attach + _KEEP_STRICT, table="ledger_entry", attempts=attempts, pause=pause)


def number_rows(connection: Connection, *, batch: int = 20_000) -> int:
    """Give every row of the ledger its number, about `batch` rows a transaction; returns how many got one.

    The first row of a key becomes 0, surplus ones 1, 2, … in order of posting. Sums do not change; what a surplus
    row posted too much is an ordinary difference, which the next pass corrects by an adjustment.
    """
    after, end, total = -(2**63), 2**63 - 1, 0
    while after < end:
        try:
            row = connection.execute(_NUMBER_BATCH, {"after": after, "size": batch, "end": end}).one()
        except IntegrityError as error:
            if not isinstance(error.orig, UniqueViolation):
                raise
            # A writer took, unseen, the number that a row was to get. Now it is visible, so the next try goes past it.
            continue
        after, total = row.last, total + row.numbered
    return total


def _is_attached(connection: Connection) -> bool:
    found = connection.execute(text("SELECT 1 FROM pg_constraint WHERE conname = :name"), {"name": CONSTRAINT})
    return found.first() is not None


def _is_by_month(connection: Connection) -> bool:
    """Whether the key's first column is the month already."""
    first = text("""
        SELECT attname FROM pg_constraint JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1]
        WHERE conname = :name
    """)
    return connection.execute(first, {"name": CONSTRAINT}).scalar_one_or_none() == "month"
