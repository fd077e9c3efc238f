"""What was settled elsewhere, in SQL: whatever is about months before an organization is paid here.

It goes through the ledger like anything else and comes off the balance that takes it in, so that it is never paid.
Where the month has changed since an organization's balance before, that holds for what earlier balances took in, too:
what was carried and is history now comes off, and what came off and is none any more is given back.
"""

from __future__ import annotations

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.periods.state import LEDGER_MONTHS


def pays_from(organization: str = "organization") -> str:
    """The first month that the row `organization` is paid for, its own or the installation's; NULL: it is not paid."""
    return sql(__file__, "pays_from", organization=organization)


def pays_from_of(organization_id: str) -> str:
    """As `pays_from`, of the organization with that id."""
    return sql(__file__, "pays_from_of", pays_from=pays_from("paid"), organization_id=organization_id)


def moved(member: str, through: str) -> str:
    """By currency what is to come off, or to be given back (negative), of what balances up to `through` took in.

    `member` has an `organization_id` and the month `pays_from`. Balances from before this was kept stay as they are:
    what they took in is not looked at.
    """
    unkept = sql(__file__, "unkept", member=member, through=through)
    return sql(__file__, "moved", member=member, through=through, unkept=unkept, ledger_months=LEDGER_MONTHS)
