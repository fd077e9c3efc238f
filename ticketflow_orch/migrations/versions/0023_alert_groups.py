"""Alerts that belong together: one for each subject, with a severity, for as long as what it tells of stands."""

from alembic import op

revision = "0023"
down_revision = "0022"

# `key`: the occurrence that opened it, by which it is called outside. `payload`: what its last occurrence told.
GROUPS = """
CREATE TABLE alert_group (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    subject text NOT NULL,
    severity text NOT NULL CHECK (severity IN ('PAGE', 'TICKET', 'INFO')),
    key text NOT NULL,
    payload jsonb NOT NULL,
    occurrences bigint NOT NULL DEFAULT 1 CHECK (occurrences >= 1),
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    told_at timestamptz NOT NULL,
    resolved_at timestamptz,
    resolved_by text,
    CHECK ((resolved_at IS NOT NULL) = (resolved_by IS NOT NULL))
);
CREATE UNIQUE INDEX alert_group_open_idx ON alert_group (kind, subject) WHERE resolved_at IS NULL;
"""

# What was alerted before belongs to none.
OCCURRENCES = """
ALTER TABLE alert
    ADD COLUMN group_id bigint REFERENCES alert_group,
    ADD COLUMN event_id uuid;
CREATE INDEX alert_group_id_idx ON alert (group_id) WHERE group_id IS NOT NULL;
"""

TYPES = "INSERT INTO outbox_event_type (name) VALUES ('AlertResolved'), ('RunFailed') ON CONFLICT DO NOTHING"


def upgrade() -> None:
    op.execute(GROUPS)
    op.execute(OCCURRENCES)
    op.execute(TYPES)
