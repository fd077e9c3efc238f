"""Expand and contract: the ledger's key begins with the month, so that a settlement writes one dense piece of it.

A key that begins with the organization dirties every leaf of its index in every month, and each leaf goes whole into
the write-ahead log. The new index is built beside the old key; the switch is one short lock under the same name.
"""

from alembic import op

from ticketflow_orch.migrations import ledger_key

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        ledger_key.begin_with_month(op.get_bind())
