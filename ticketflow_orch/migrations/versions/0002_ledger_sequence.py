"""Expand: the ledger learns `sequence`, duplicates are numbered apart, and a unique index guards the key."""

from alembic import op

from ticketflow_orch.migrations import ledger_key

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        ledger_key.expand(op.get_bind())
