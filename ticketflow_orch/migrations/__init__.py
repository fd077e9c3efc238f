"""The schema's history, run by Alembic; see `migrate` for how it is driven."""
