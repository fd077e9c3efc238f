"""Dagster on plain hosts: the instance, its storage, and the processes that execute its runs."""
