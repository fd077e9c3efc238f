"""Delivery: leases, frozen bodies, doubts and answers of outbox events; what is stopped.

No index of the outbox names a column that a claim changes, and the table's pages are filled to 40 % only, so that the
row with its lease and its body finds room beside the old one: claims touch no index.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

# `ended_at`: when an event was delivered or suppressed, so that nothing is left to do. `available_at` is there while
# the relay may still take it by itself. `doubtful_since`: the first attempt of which nobody knows what became of it.
# `attempts` only ever grows, since it is the fence; those forgiven no longer count against the route's limit.
OUTBOX = """
DROP INDEX outbox_event_due_idx, outbox_event_aggregate_idx, outbox_event_delivered_at_idx,
    outbox_event_suppressed_idx, outbox_event_told_idx;

ALTER TABLE outbox_event
    DROP CONSTRAINT outbox_event_check1,
    ALTER COLUMN available_at DROP NOT NULL,
    ADD COLUMN attempts_forgiven integer NOT NULL DEFAULT 0
        CONSTRAINT outbox_event_attempts_forgiven_check CHECK (attempts_forgiven BETWEEN 0 AND attempts),
    ADD COLUMN owner text,
    ADD COLUMN body bytea,
    ADD COLUMN first_attempt_at timestamptz,
    ADD COLUMN last_attempt_at timestamptz,
    ADD COLUMN doubtful_since timestamptz,
    ADD COLUMN last_response text;
ALTER TABLE outbox_event RENAME COLUMN delivered_at TO ended_at;

ALTER TABLE outbox_event DISABLE TRIGGER USER;
UPDATE outbox_event SET ended_at = occurred_at WHERE state = 'SUPPRESSED';
UPDATE outbox_event SET available_at = NULL WHERE state NOT IN ('PENDING', 'INFLIGHT');
UPDATE outbox_event SET owner = 'unknown' WHERE state = 'INFLIGHT';
ALTER TABLE outbox_event ENABLE TRIGGER USER;

ALTER TABLE outbox_event
    ADD CHECK ((owner IS NOT NULL) = (state = 'INFLIGHT')),
    ADD CHECK ((ended_at IS NOT NULL) = (state IN ('DELIVERED', 'SUPPRESSED'))),
    ADD CHECK ((available_at IS NOT NULL) = (state IN ('PENDING', 'INFLIGHT'))),
    SET (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX outbox_event_due_idx ON outbox_event (event_type, available_at, id) WHERE ended_at IS NULL;
CREATE INDEX outbox_event_waiting_idx ON outbox_event (aggregate_type, aggregate_id, id) WHERE ended_at IS NULL;
CREATE INDEX outbox_event_told_idx ON outbox_event (aggregate_type, aggregate_id) WHERE ended_at IS NOT NULL;
CREATE INDEX outbox_event_ended_idx ON outbox_event (ended_at) INCLUDE (event_type) WHERE ended_at IS NOT NULL;

CREATE OR REPLACE TRIGGER outbox_event_transition BEFORE UPDATE OF state ON outbox_event FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('PENDING', 'INFLIGHT'), ('PENDING', 'HELD'), ('PENDING', 'SUPPRESSED'), ('PENDING', 'DEAD'),
        ('INFLIGHT', 'PENDING'), ('INFLIGHT', 'DELIVERED'), ('INFLIGHT', 'DEAD'), ('INFLIGHT', 'IN_DOUBT'),
        ('INFLIGHT', 'SUPPRESSED'), ('INFLIGHT', 'HELD'), ('DEAD', 'PENDING'), ('DEAD', 'DELIVERED'),
        ('DEAD', 'SUPPRESSED'), ('HELD', 'PENDING'), ('HELD', 'SUPPRESSED'), ('IN_DOUBT', 'PENDING'),
        ('IN_DOUBT', 'DELIVERED'), ('IN_DOUBT', 'DEAD'), ('IN_DOUBT', 'SUPPRESSED')))
    EXECUTE FUNCTION refuse_transition('state');

-- What a receiver may have seen is sent again as it was.
CREATE TRIGGER outbox_event_body_frozen BEFORE UPDATE OF body ON outbox_event FOR EACH ROW
    WHEN (OLD.body IS NOT NULL AND OLD.body IS DISTINCT FROM NEW.body)
    EXECUTE FUNCTION refuse('an outbox event never changes the bytes that were sent');
"""

# What is not delivered until somebody says so: a destination that answered that it is gone, a type of event that a
# person has paused.
STOPS = """
CREATE TABLE delivery_stop (
    kind text NOT NULL CHECK (kind IN ('DESTINATION', 'EVENT_TYPE')),
    name text NOT NULL,
    reason text NOT NULL,
    stopped_by text NOT NULL,
    stopped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, name)
);
"""


def upgrade() -> None:
    op.execute(OUTBOX)
    op.execute(STOPS)
