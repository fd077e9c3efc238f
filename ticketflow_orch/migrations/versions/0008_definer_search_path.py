"""Hardening: what runs with the rights of its owner looks into temporary tables last.

A search path that does not name pg_temp begins with it, so whoever made a temporary outbox_event would have had events
written there instead (CREATE FUNCTION, "Writing SECURITY DEFINER Functions Safely").
"""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute("ALTER FUNCTION money_movement_late_capture() SET search_path = public, pg_temp")
