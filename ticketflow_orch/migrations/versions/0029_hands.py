"""A chunk says which run did it, and since when that had worked on it: several runs may share a pass."""

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE settlement_chunk
            ADD COLUMN IF NOT EXISTS run_id text,
            ADD COLUMN IF NOT EXISTS begun_at timestamptz
        """
    )
