"""Postgres as this project talks to it: sessions, transactions, errors, locks, the schema's version, its own row.

No table of the business is asked here, and no setting read. Modules are imported by their names: `engine` and `errors`
by everybody, `migrate` and `catalogue` by few.
"""
