"""Postgres as this project talks to it: sessions, transactions, errors, batches, locks, the schema's version."""
