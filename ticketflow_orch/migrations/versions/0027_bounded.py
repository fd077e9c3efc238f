"""Nothing grows for ever: reminders of dates that are long past and alerts that were told long ago go by functions.

Both are what keeps anybody from being told twice, so the role of runs may not delete them at will.
"""

from alembic import op

revision = "0027"
down_revision = "0026"

# A day less than the shortest retention there is, as for events. What an event in the outbox still stands for stays.
FUNCTIONS = """
CREATE OR REPLACE FUNCTION reminder_prune(dated_before timestamptz, low bigint, high bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    IF dated_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'reminders of the last 39 days stay, and those before % are among them', dated_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'reminder';
    END IF;
    DELETE FROM reminder
    WHERE ctid >= format('(%s,0)', low)::tid AND ctid < format('(%s,0)', high)::tid
        AND event_date < CAST(dated_before AT TIME ZONE 'UTC' AS date) - 1
        AND NOT EXISTS (SELECT FROM outbox_event WHERE outbox_event.event_id = reminder.outbox_event_id);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
REVOKE EXECUTE ON FUNCTION reminder_prune(timestamptz, bigint, bigint) FROM PUBLIC;

CREATE OR REPLACE FUNCTION alert_prune(alerted_before timestamptz, most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    IF alerted_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'what was alerted in the last 39 days is remembered, and % is among it', alerted_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'alert';
    END IF;
    -- What stands is remembered, and so is what an event in the outbox still tells of.
    DELETE FROM alert WHERE (kind, key) IN (
        SELECT alert.kind, alert.key FROM alert LEFT JOIN alert_group ON alert_group.id = group_id
        WHERE alerted_at < alerted_before AND (group_id IS NULL OR resolved_at < alerted_before)
            AND NOT EXISTS (SELECT FROM outbox_event WHERE dedupe_key = alert.kind || ' ' || alert.key)
        LIMIT most);
    GET DIAGNOSTICS removed = ROW_COUNT;
    DELETE FROM alert_group
    WHERE resolved_at < alerted_before AND NOT EXISTS (SELECT FROM alert WHERE group_id = alert_group.id);
    RETURN removed;
END $$;
REVOKE EXECUTE ON FUNCTION alert_prune(timestamptz, bigint) FROM PUBLIC;
"""


def upgrade() -> None:
    op.execute(FUNCTIONS)
