"""Expand: what is late is told by the order in which movements were recorded, not by clocks.

A movement's id comes from a sequence that is drawn while its transaction already holds ROW EXCLUSIVE on the table. So a
value of that sequence divides movements into those that a pass has read and those that came later, whatever any clock
says. Writers that know nothing of this work on.
"""

from alembic import op

from ticketflow_orch.migrations import recording_order

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        recording_order.expand(op.get_bind())
