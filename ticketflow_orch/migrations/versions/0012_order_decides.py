"""Contract: cutoffs are movement ids, and no guard compares two clocks any more."""

from alembic import op

from ticketflow_orch.migrations import recording_order

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        recording_order.contract(op.get_bind())
