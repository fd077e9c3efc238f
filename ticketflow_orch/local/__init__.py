"""What runs on this host: a Postgres of our own, processes, and which databases serve.

Sessions and statements belong in `db`, Dagster's instance and its daemons in `dagster_host`.
"""
