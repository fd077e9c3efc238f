"""The database defends itself further: against snapshots that are too old, and ends and months that are made up.

A deletion of movements and organizations is judged by what settlements have read; a month takes in what was brought
along or came back only while it is being closed; an event does not end in the past, where the retention would take it
at once; a search for anomalies goes no further than settlements have; and only the owner has triggers run with the
owner's rights.
"""

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import with_short_lock

revision = "0022"
down_revision = "0021"

# An undo locks the table of imports before it takes its snapshot, and the one of movements, for which a pass waits.
FUNCTIONS = """
CREATE OR REPLACE FUNCTION refuse_old_snapshot() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND NOT EXISTS (
        SELECT FROM pg_locks
        WHERE pid = pg_backend_pid() AND relation = to_regclass(TG_ARGV[0]) AND mode = 'ShareRowExclusiveLock')
    THEN
        RAISE EXCEPTION 'a transaction in % may not see what others have committed: change % in READ COMMITTED',
            upper(current_setting('transaction_isolation')), TG_TABLE_NAME
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION taken_in_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    taken date := CAST(to_jsonb(NEW) ->> TG_ARGV[0] AS date);
BEGIN
    PERFORM FROM settlement_period WHERE month = taken AND state = 'CLOSING';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'month % takes nothing in from %: it is not being closed', to_char(taken, 'YYYY-MM'),
            TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION anomaly_search_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM settlement_pass WHERE state = 'DONE' AND cutoff >= NEW.searched_to) THEN
        RAISE EXCEPTION 'no settlement has read to %, so no search for anomalies has', NEW.searched_to
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

-- The owner may correct what was written.
CREATE OR REPLACE FUNCTION outbox_event_end_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RAISE EXCEPTION 'event % does not end at %, which is past', NEW.event_id, NEW.ended_at
            USING ERRCODE = 'insufficient_privilege', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

REVOKE EXECUTE ON FUNCTION organization_change_kept() FROM PUBLIC;
"""

TRIGGERS = {
    "organization": """
        CREATE OR REPLACE TRIGGER organization_entries_seen BEFORE DELETE ON organization FOR EACH STATEMENT
            EXECUTE FUNCTION refuse_old_snapshot('data_import')
    """,
    "money_movement": """
        CREATE OR REPLACE TRIGGER money_movement_passes_seen BEFORE DELETE ON money_movement FOR EACH STATEMENT
            EXECUTE FUNCTION refuse_old_snapshot('data_import')
    """,
    "settlement_period": """
        CREATE OR REPLACE TRIGGER settlement_period_of_its_month BEFORE UPDATE OF month ON settlement_period
            FOR EACH ROW WHEN (OLD.month <> NEW.month)
            EXECUTE FUNCTION refuse('a settlement period is of one month for good')
    """,
    "opening_balance": """
        CREATE OR REPLACE TRIGGER opening_balance_taken_in BEFORE UPDATE OF balance_month ON opening_balance
            FOR EACH ROW WHEN (OLD.balance_month IS NULL AND NEW.balance_month IS NOT NULL)
            EXECUTE FUNCTION taken_in_guard('balance_month')
    """,
    "payout": """
        CREATE OR REPLACE TRIGGER payout_taken_in BEFORE UPDATE OF returned_month ON payout
            FOR EACH ROW WHEN (OLD.returned_month IS NULL AND NEW.returned_month IS NOT NULL)
            EXECUTE FUNCTION taken_in_guard('returned_month')
    """,
    "outbox_event": """
        CREATE OR REPLACE TRIGGER outbox_event_ends_now AFTER UPDATE OF ended_at ON outbox_event FOR EACH ROW
            WHEN (NEW.ended_at < clock_timestamp() - interval '1 day' AND OLD.ended_at IS DISTINCT FROM NEW.ended_at)
            EXECUTE FUNCTION outbox_event_end_guard()
    """,
    "anomaly_search": """
        CREATE OR REPLACE TRIGGER anomaly_search_follows BEFORE UPDATE OF searched_to ON anomaly_search FOR EACH ROW
            WHEN (OLD.searched_to < NEW.searched_to) EXECUTE FUNCTION anomaly_search_guard();
        CREATE OR REPLACE TRIGGER anomaly_search_stays BEFORE DELETE OR TRUNCATE ON anomaly_search
            FOR EACH STATEMENT EXECUTE FUNCTION refuse('how far was searched for anomalies is never deleted')
    """,
}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        connection.execute(text(FUNCTIONS))
        for table, triggers in TRIGGERS.items():
            with_short_lock(connection, triggers, table=table)
