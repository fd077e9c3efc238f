"""The business of TicketFlow's back office: plain Python and SQL, importable without Dagster.

Only `definitions` (the code location), the command (`cli`) and `dagster_host` know Dagster. Nothing else belongs beside
them here but plain values that every room may import: `settings`, `clock`, `months`, `errors`.
"""
