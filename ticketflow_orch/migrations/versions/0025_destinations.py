"""Each destination has a state of its own, each attempt is kept, and a resident relay hears of what is written.

What a destination last did decides when it is next sent something and how fast; relays on several hosts share it here.
An event is given up by its age, counted from the first try since somebody last sent it on its way.
"""

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import with_short_lock

revision = "0025"
down_revision = "0024"

# `tried_since`: from when on its age counts. `lost`: how many holders in a row went away with it. `last_owner`: who
# ended its last attempt.
COLUMNS = """
ALTER TABLE outbox_event
    ADD COLUMN IF NOT EXISTS tried_since timestamptz,
    ADD COLUMN IF NOT EXISTS lost integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS last_owner text
"""

# An attempt that ended otherwise than by delivery, which the event's own row says. No foreign key: each would be asked
# at every claim.
TABLES = """
CREATE TABLE IF NOT EXISTS outbox_attempt (
    outbox_id bigint NOT NULL,
    attempt integer NOT NULL,
    began_at timestamptz,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    owner text,
    destination text,
    outcome text NOT NULL,
    error text,
    response text,
    PRIMARY KEY (outbox_id, attempt)
);

CREATE TABLE IF NOT EXISTS delivery_destination (
    name text PRIMARY KEY,
    failing_since timestamptz,
    pauses integer NOT NULL DEFAULT 0,
    open_until timestamptz,
    probe_until timestamptz,
    paused_until timestamptz,
    rate numeric CHECK (rate > 0),
    ceiling numeric,
    throttled_at timestamptz,
    rate_at timestamptz,
    next_at timestamptz,
    last_error text,
    CHECK (pauses >= 0)
);
"""

# Wakes resident relays, once for each transaction that writes events. Not where another trigger writes them, in the
# application's own transactions: those neither wait for each other at their commit nor lose the right to be prepared.
FUNCTIONS = """
CREATE OR REPLACE FUNCTION outbox_event_announce() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() = 1 THEN
        PERFORM pg_notify('ticketflow_outbox', '');
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION outbox_prune(ended_before timestamptz, most bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    IF ended_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'what ended in the last 39 days stays in the outbox, and % is among them', ended_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'outbox_event';
    END IF;
    WITH gone AS (
        DELETE FROM outbox_event WHERE id IN (
            SELECT id FROM outbox_event WHERE ended_at < ended_before ORDER BY ended_at LIMIT most)
        RETURNING id
    ), attempts AS (
        DELETE FROM outbox_attempt USING gone WHERE outbox_id = gone.id
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END $$;
REVOKE EXECUTE ON FUNCTION outbox_prune(timestamptz, bigint) FROM PUBLIC;
"""

TRIGGER = """
CREATE OR REPLACE TRIGGER outbox_event_announced AFTER INSERT ON outbox_event
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_event_announce()
"""

TYPES = "INSERT INTO outbox_event_type (name) VALUES ('DestinationFailing') ON CONFLICT DO NOTHING"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        with_short_lock(connection, COLUMNS, table="outbox_event")
        connection.execute(text(TABLES))
        connection.execute(text(FUNCTIONS))
        with_short_lock(connection, TRIGGER, table="outbox_event")
        connection.execute(text(TYPES))
