"""Dagster on plain hosts: the instance, its storage, and the processes that execute its runs.

The two rooms below it, `local` and `db`, know no Dagster. What a run does belongs to the outer folders. Nothing is
exported here, so that importing the package does not import Dagster.
"""
