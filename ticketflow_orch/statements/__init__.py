"""Statements of closed months: what an organization is owed and why, written once to the cent, and mailed once.

`publish` issues those of a month, `model` is what a statement holds and when it adds up, `queries` reads it from the
database, `drafts` are statements as they were read, `html` and `tables` are their forms, `columns` those of the tables,
`writing` makes the files of a month, `storage` is where files are put, `mail_queue` queues the mails, `invariants` asks
whether what was issued is still there and right. The mails themselves are rendered in `mail`, not here.
"""

from __future__ import annotations

from ticketflow_orch.statements.model import StatementsLeftOutError
from ticketflow_orch.statements.publish import (
    StatementOptions,
    StatementsResult,
    issue_statements,
    statements_place,
    write_statement,
)

__all__ = [
    "StatementOptions",
    "StatementsLeftOutError",
    "StatementsResult",
    "issue_statements",
    "statements_place",
    "write_statement",
]
