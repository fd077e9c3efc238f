"""The business of TicketFlow's back office: plain Python and SQL, importable without Dagster.

Only `definitions` (the code location) and the entry points `cli`, `demo` and `instance` know Dagster.
"""
