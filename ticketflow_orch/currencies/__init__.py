"""Currencies that come and go: which one an organization has in a month, and how one is replaced by another.

`in_use` says it as SQL for those who count; `terms` reads what is decided, `replacing` carries it out.
"""
