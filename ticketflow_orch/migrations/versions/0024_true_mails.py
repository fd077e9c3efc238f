"""Mails say what is true when they go: bytes freeze with doubt, changes are told, suppressions are looked at again.

A mail that nobody can have received is rendered anew. A suppressed event whose reason may pass says until when it is
looked at again. A kind of reminder remembers the leads it had. What changed about an event that buyers were told of is
written down by the database, whoever changed it. Addresses that take no mail any more are listed.
"""

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import build_index, with_short_lock

revision = "0024"
down_revision = "0023"

OUTBOX = """
ALTER TABLE outbox_event ADD COLUMN IF NOT EXISTS reconsider_until timestamptz;
ALTER TABLE outbox_event
    DROP CONSTRAINT IF EXISTS outbox_event_reconsider_until_check,
    ADD CONSTRAINT outbox_event_reconsider_until_check CHECK (reconsider_until IS NULL OR state = 'SUPPRESSED')
        NOT VALID;
CREATE OR REPLACE TRIGGER outbox_event_transition AFTER UPDATE OF state ON outbox_event FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state = 'SUPPRESSED' AND NEW.event_type = 'PayoutRequested'
        OR (OLD.state, NEW.state) NOT IN (
        ('PENDING', 'INFLIGHT'), ('INFLIGHT', 'DELIVERED'), ('INFLIGHT', 'PENDING'), ('INFLIGHT', 'DEAD'),
        ('INFLIGHT', 'IN_DOUBT'), ('INFLIGHT', 'SUPPRESSED'), ('INFLIGHT', 'HELD'), ('PENDING', 'HELD'),
        ('PENDING', 'SUPPRESSED'), ('PENDING', 'DEAD'), ('DEAD', 'PENDING'), ('DEAD', 'DELIVERED'),
        ('DEAD', 'SUPPRESSED'), ('HELD', 'PENDING'), ('HELD', 'SUPPRESSED'), ('IN_DOUBT', 'PENDING'),
        ('IN_DOUBT', 'DELIVERED'), ('IN_DOUBT', 'DEAD'), ('IN_DOUBT', 'SUPPRESSED'), ('SUPPRESSED', 'PENDING'))))
    EXECUTE FUNCTION refuse_transition('state');
CREATE OR REPLACE TRIGGER outbox_event_body_frozen AFTER UPDATE OF body ON outbox_event FOR EACH ROW
    WHEN (OLD.body IS NOT NULL AND OLD.body IS DISTINCT FROM NEW.body
        AND (OLD.doubtful_since IS NOT NULL OR OLD.state IN ('DELIVERED', 'IN_DOUBT')))
    EXECUTE FUNCTION refuse('an outbox event never changes the bytes that somebody may have')
"""
VALIDATE = "ALTER TABLE outbox_event VALIDATE CONSTRAINT outbox_event_reconsider_until_check"

# What people dropped stays dropped.
KEPT_BACK = """
UPDATE outbox_event SET reconsider_until = CAST(payload ->> 'event_date' AS date) + interval '2 days'
WHERE state = 'SUPPRESSED' AND event_type = 'ReminderDue' AND ended_at > clock_timestamp() - interval '15 days'
    AND payload ->> 'event_date' ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'
    AND payload ->> 'event_date' >= to_char(clock_timestamp() - interval '2 days', 'YYYY-MM-DD')
    AND last_error NOT LIKE 'Resolved as dropped%'
"""

REMINDERS = """
ALTER TABLE reminder
    ADD COLUMN IF NOT EXISTS told_starts_at timestamptz,
    ADD COLUMN IF NOT EXISTS told_venue text,
    ADD COLUMN IF NOT EXISTS changes_told integer NOT NULL DEFAULT 0
"""

TABLES = """
CREATE TABLE IF NOT EXISTS reminder_lead (
    kind text NOT NULL,
    since timestamptz NOT NULL,
    lead interval NOT NULL CHECK (lead > interval '0'),
    PRIMARY KEY (kind, since)
);
CREATE TABLE IF NOT EXISTS event_change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id bigint NOT NULL REFERENCES event ON DELETE CASCADE,
    what text NOT NULL CHECK (what IN ('MOVED', 'CANCELLED')),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    looked_at timestamptz
);
CREATE INDEX IF NOT EXISTS event_change_event_id_idx ON event_change (event_id);
CREATE INDEX IF NOT EXISTS event_change_waiting_idx ON event_change (id) WHERE looked_at IS NULL;
CREATE TABLE IF NOT EXISTS mail_suppression (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    address text NOT NULL,
    reason text NOT NULL CHECK (reason IN ('BOUNCE', 'COMPLAINT', 'UNSUBSCRIBE', 'BY_HAND')),
    detail text NOT NULL,
    outbox_event_id uuid,
    suppressed_by text NOT NULL,
    suppressed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    cleared_by text,
    cleared_at timestamptz CHECK ((cleared_at IS NOT NULL) = (cleared_by IS NOT NULL))
);
CREATE UNIQUE INDEX IF NOT EXISTS mail_suppression_address_idx ON mail_suppression (address, reason)
    WHERE cleared_at IS NULL;
INSERT INTO outbox_event_type (name) VALUES ('EventCancelled'), ('ReminderChanged') ON CONFLICT DO NOTHING;
"""

# With the rights of the tables' owner: whoever changes an event needs none on what is written down about it.
CHANGES = """
CREATE OR REPLACE FUNCTION event_changed() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO event_change (event_id, what)
    VALUES (NEW.id, CASE NEW.status WHEN 'OPEN' THEN 'MOVED' ELSE 'CANCELLED' END);
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION event_changed() FROM PUBLIC;

-- What was decided about an event at another hour is decided anew; what was queued stays, so nobody is reminded twice.
CREATE OR REPLACE FUNCTION reminders_undecided(moved bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM reminder USING reservation
    WHERE reservation_id = reservation.id AND event_id = moved AND reminder.state <> 'QUEUED';
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
REVOKE EXECUTE ON FUNCTION reminders_undecided(bigint) FROM PUBLIC;
"""

EVENTS = """
ALTER TABLE event ADD COLUMN IF NOT EXISTS venue text;
CREATE OR REPLACE TRIGGER event_changed AFTER UPDATE OF starts_at, timezone, venue, status ON event FOR EACH ROW
    WHEN (OLD.status = 'OPEN' AND (NEW.status = 'CANCELLED' OR NEW.status = 'OPEN'
        AND (OLD.starts_at, OLD.timezone, OLD.venue) IS DISTINCT FROM (NEW.starts_at, NEW.timezone, NEW.venue)))
    EXECUTE FUNCTION event_changed()
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        with_short_lock(connection, OUTBOX, table="outbox_event")
        with_short_lock(connection, VALIDATE, table="outbox_event")
        build_index(
            connection, "outbox_event_reconsider_idx", "outbox_event", ("id",), where="reconsider_until IS NOT NULL"
        )
        connection.execute(text(KEPT_BACK))
        with_short_lock(connection, REMINDERS, table="reminder")
        with_short_lock(connection, TABLES, table="event")
        connection.execute(text(CHANGES))
        with_short_lock(connection, EVENTS, table="event")
