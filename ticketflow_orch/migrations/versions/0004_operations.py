"""Operations: who expired a reservation, late captures told at once, the memory of alerts and of reminder kinds."""

from alembic import op

revision = "0004"
down_revision = "0003"

TABLES = """
ALTER TABLE reservation
    ADD COLUMN expired_by text,
    ADD COLUMN cancelled_at timestamptz;

-- What is due by the minute. Rows that wait for a person (stuck payments) are out of the way of both.
DROP INDEX reservation_active_expires_at_idx;
CREATE INDEX reservation_due_idx ON reservation (expires_at, id)
    WHERE status = 'ACTIVE' AND stuck_reported_at IS NULL;
CREATE INDEX reservation_stuck_idx ON reservation (id) WHERE status = 'ACTIVE' AND stuck_reported_at IS NOT NULL;
DROP INDEX event_open_ends_at_idx;
CREATE INDEX event_open_ends_at_idx ON event (ends_at, id) WHERE status = 'OPEN';

-- A kind that is new reminds nobody of what was due before it was there.
CREATE TABLE reminder_kind (
    kind text PRIMARY KEY,
    lead interval NOT NULL CHECK (lead > interval '0'),
    enabled_at timestamptz NOT NULL
);

-- That something was alerted is remembered for ever, whatever retention deletes elsewhere.
CREATE TABLE alert (
    kind text NOT NULL,
    key text NOT NULL,
    alerted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, key)
);

DROP INDEX event_open_starts_at_idx;
CREATE INDEX event_starts_at_idx ON event (starts_at, id) WHERE status IN ('OPEN', 'CLOSED');
CREATE INDEX reservation_confirmed_idx ON reservation (event_id) WHERE status = 'CONFIRMED';

CREATE INDEX job_firing_fired_at_idx ON job_firing (fired_at);
CREATE INDEX job_execution_lease_idx ON job_execution (lease_until) WHERE state = 'PROCESSING';
-- What retention, the effect log and the metrics look for among the events that are done with.
CREATE INDEX outbox_event_delivered_at_idx ON outbox_event (delivered_at) INCLUDE (event_type)
    WHERE state = 'DELIVERED';
CREATE INDEX outbox_event_suppressed_idx ON outbox_event (occurred_at) WHERE state = 'SUPPRESSED';
CREATE INDEX outbox_event_told_idx ON outbox_event (aggregate_type, aggregate_id)
    WHERE state IN ('DELIVERED', 'SUPPRESSED');

-- A reminder outlives its event in the outbox: it is what makes sure that nobody is reminded twice.
ALTER TABLE reminder DROP CONSTRAINT reminder_outbox_event_id_fkey;

-- Captures of reservations that had ended, so that nobody looks for them among all. Movements are append-only, so no
-- foreign key is needed; one would only put its own words before their refusal of a TRUNCATE.
CREATE TABLE late_capture (
    movement_id bigint PRIMARY KEY
);
"""

# FOR SHARE, so that a capture and the expiry of its reservation wait for each other: whichever commits first, the
# other one sees it. The foreign key's own lock lets the status change underneath.
LATE_CAPTURES = """
CREATE FUNCTION reservation_cancelled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.cancelled_at := clock_timestamp();
    RETURN NEW;
END $$;
CREATE TRIGGER reservation_cancelled BEFORE UPDATE OF status ON reservation FOR EACH ROW
    WHEN (NEW.status = 'CANCELLED' AND OLD.status <> 'CANCELLED' AND NEW.cancelled_at IS NULL)
    EXECUTE FUNCTION reservation_cancelled();

-- With the rights of its owner: whoever may record a capture need not be allowed to write to the outbox.
CREATE FUNCTION money_movement_late_capture() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = public AS $$
DECLARE
    held reservation;
BEGIN
    SELECT * INTO held FROM reservation WHERE id = NEW.reservation_id FOR SHARE;
    IF held.status IN ('EXPIRED', 'CANCELLED') THEN
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        VALUES ('reservation', held.public_ref, 'PaymentAfterExpiry',
            jsonb_build_object('reservation', held.public_ref, 'movement', NEW.external_ref, 'status', held.status,
                'amount', NEW.amount, 'currency', NEW.currency),
            'PaymentAfterExpiry:' || NEW.external_ref, NEW.occurred_at)
        ON CONFLICT (dedupe_key) DO NOTHING;
        INSERT INTO late_capture (movement_id) VALUES (NEW.id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER money_movement_late_capture AFTER INSERT ON money_movement FOR EACH ROW
    WHEN (NEW.kind = 'CAPTURE' AND NOT NEW.is_void AND NEW.reservation_id IS NOT NULL AND NEW.import_id IS NULL)
    EXECUTE FUNCTION money_movement_late_capture();
"""


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(LATE_CAPTURES)
