"""The database defends itself, whatever a session brings along and whatever writes past the code.

Functions look where the tables are, never into a session's temporary ones. Who closed a month stays written; no guard
is asked about a snapshot that is older than what it guards; nothing asks for money that no payout owes; and events
leave the outbox by one door.
"""

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import with_short_lock

revision = "0018"
down_revision = "0017"

# Found by name, so that what a later version drops or replaces is left alone.
FUNCTIONS = """
DO $$
DECLARE
    found text;
BEGIN
    FOR found IN
        SELECT CAST(CAST(oid AS regprocedure) AS text) FROM pg_proc
        WHERE pronamespace = CAST('public' AS regnamespace) AND proname IN (
            'refuse', 'refuse_transition', 'refuse_while_settling', 'organization_guard', 'organization_delete_guard',
            'reservation_needs_open_event', 'reservation_cancelled', 'money_movement_matches_reversed',
            'money_movement_delete_guard', 'money_movement_late_capture', 'ledger_entry_period_guard',
            'settlement_window_guard', 'settlement_period_balance_guard', 'settlement_read_to', 'settlement_has_read',
            'organization_balance_period_guard', 'payout_balance_guard', 'payout_held_guard')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, public, pg_temp', found);
    END LOOP;
END $$;

-- A setting costs each call a few microseconds, and this is called for every movement: it names what it calls in full.
CREATE OR REPLACE FUNCTION money_movement_recorded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.recorded_at := pg_catalog.clock_timestamp();
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION refuse_old_snapshot() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a transaction in % may not see what others have committed: change % in READ COMMITTED',
            upper(current_setting('transaction_isolation')), TG_TABLE_NAME
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
"""

# What may be told. The owner of the outbox, and functions with its rights, write other types too.
TYPES = """
CREATE TABLE IF NOT EXISTS outbox_event_type (name text PRIMARY KEY);
INSERT INTO outbox_event_type (name) VALUES
    ('DestinationGone'), ('DuplicateFiring'), ('EventClosed'), ('MonthSettled'), ('OutboxEventDead'),
    ('OutboxEventHeld'), ('OutboxEventInDoubt'), ('PayoutContradicted'), ('PayoutInDoubt'), ('PayoutReferenceShared'),
    ('PayoutRequested'), ('PayoutsHeldForReview'), ('ReminderDue'), ('ReservationExpired'),
    ('ReservationPaymentStuck'), ('RowLeftOut'), ('StaleClaim'), ('StatementReady'), ('WindowMissed'),
    ('WorkOverdue')
ON CONFLICT DO NOTHING;
"""

OUTBOX = """
CREATE OR REPLACE FUNCTION outbox_event_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    refused record;
BEGIN
    IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        SELECT event_type INTO refused FROM added
        WHERE NOT EXISTS (SELECT FROM outbox_event_type WHERE name = event_type) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION '% is no type of event that % may write', refused.event_type, current_user
                USING ERRCODE = 'insufficient_privilege', TABLE = TG_TABLE_NAME;
        END IF;
    END IF;
    SELECT added.aggregate_id, added.payload INTO refused
    FROM added
    LEFT JOIN payout ON public_id = CASE
        WHEN aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN CAST(aggregate_id AS uuid) END
    LEFT JOIN organization ON organization.id = payout.organization_id
    WHERE event_type = 'PayoutRequested' AND (
        payout.state IS DISTINCT FROM 'REQUESTED' OR aggregate_type <> 'payout'
        OR dedupe_key <> 'PayoutRequested:' || public_id
        OR NOT payload @> jsonb_build_object(
            'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),
            'currency', payout.currency, 'amount', amount))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no payout % asks for what its event says: %', refused.aggregate_id, refused.payload
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

-- The only way by which events leave, with the rights of its owner. A day less than the shortest retention there is, so
-- that no zone of a session is in the way.
CREATE OR REPLACE FUNCTION outbox_prune(ended_before timestamptz, most bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    IF ended_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'what ended in the last 39 days stays in the outbox, and % is among them', ended_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'outbox_event';
    END IF;
    DELETE FROM outbox_event WHERE id IN (
        SELECT id FROM outbox_event WHERE ended_at < ended_before ORDER BY ended_at LIMIT most);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
REVOKE EXECUTE ON FUNCTION outbox_prune(timestamptz, bigint) FROM PUBLIC;
"""

TRIGGERS = {
    "outbox_event": """
        CREATE OR REPLACE TRIGGER outbox_event_may_be_told AFTER INSERT ON outbox_event
            REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION outbox_event_guard()
    """,
    "settlement_period": """
        CREATE OR REPLACE TRIGGER settlement_period_closed_for_good BEFORE UPDATE ON settlement_period FOR EACH ROW
            WHEN (OLD.state = 'CLOSED' AND NEW.state = 'CLOSED' AND (OLD.month, OLD.settled_at, OLD.settled_by,
                OLD.closed_at, OLD.closed_by, OLD.closed_role, OLD.closed_run_id) IS DISTINCT FROM (NEW.month,
                NEW.settled_at, NEW.settled_by, NEW.closed_at, NEW.closed_by, NEW.closed_role, NEW.closed_run_id))
            EXECUTE FUNCTION refuse('who settled and closed a month, and when, stays as it was written');
        CREATE OR REPLACE TRIGGER settlement_period_balanced_seen BEFORE UPDATE OF state ON settlement_period
            FOR EACH ROW WHEN (OLD.state = 'CLOSING' AND NEW.state = 'SETTLED')
            EXECUTE FUNCTION refuse_old_snapshot()
    """,
    "organization": """
        CREATE OR REPLACE TRIGGER organization_movements_seen BEFORE UPDATE OF timezone, currency ON organization
            FOR EACH ROW WHEN ((OLD.timezone, OLD.currency) IS DISTINCT FROM (NEW.timezone, NEW.currency))
            EXECUTE FUNCTION refuse_old_snapshot()
    """,
}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        for script in (FUNCTIONS, TYPES, OUTBOX):
            connection.execute(text(script))
        for table, triggers in TRIGGERS.items():
            with_short_lock(connection, triggers, table=table)
