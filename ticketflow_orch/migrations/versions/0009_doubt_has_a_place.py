"""Whom an attempt was addressed to, so that a doubt is settled where it arose; and a function that nobody else may use.

A receiver that never saw an event can neither recognise it nor be asked about it. And whoever may create temporary
tables could have attached the function, which runs with the rights of its owner, to one of them. A trigger that is
there needs no right to execute.
"""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("ALTER TABLE outbox_event ADD COLUMN destination text")
    op.execute("REVOKE EXECUTE ON FUNCTION money_movement_late_capture() FROM PUBLIC")
