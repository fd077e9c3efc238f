"""A check that is red is an event of its own."""

from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.execute("INSERT INTO outbox_event_type (name) VALUES ('CheckFailed') ON CONFLICT DO NOTHING")
