"""The audit: every invariant of the money and of what follows from it, by name, asked of the database, read-only.

`invariants` lists them; `ledger` and `effects` ask what no other module asks; `examination` asks all in one snapshot.
"""

from ticketflow_orch.auditing.examination import Verdict, examine, organization_members, snapshot
from ticketflow_orch.auditing.invariants import INVARIANTS
from ticketflow_orch.auditing.model import Asked, Invariant, Scope

__all__ = ["INVARIANTS", "Asked", "Invariant", "Scope", "Verdict", "examine", "organization_members", "snapshot"]
