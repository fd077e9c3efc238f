"""Contract: the unique index becomes the ledger's primary key, and the ledger is append-only without exception."""

from alembic import op

from ticketflow_orch.migrations import ledger_key

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        ledger_key.contract(op.get_bind())
