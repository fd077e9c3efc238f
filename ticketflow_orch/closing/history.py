"""What was settled elsewhere, in SQL: whatever is about months before an organization is paid here.

It goes through the ledger like anything else and comes off the balance that takes it in, so that it is never paid.
Where the month has changed since an organization's balance before, that holds for what earlier balances took in, too:
what was carried and is history now comes off, and what came off and is none any more is given back.
"""

from __future__ import annotations

from ticketflow_orch.periods.state import LEDGER_MONTHS


def pays_from(organization: str = "organization") -> str:
    """The first month that the row `organization` is paid for, its own or the installation's; NULL: it is not paid."""
    return f"coalesce({organization}.payouts_from, (SELECT CAST(payouts_from AS date) FROM installation))"


def pays_from_of(organization_id: str) -> str:
    """As `pays_from`, of the organization with that id."""
    return f"(SELECT {pays_from('paid')} FROM organization AS paid WHERE paid.id = {organization_id})"


def moved(member: str, through: str) -> str:
    """By currency what is to come off, or to be given back (negative), of what balances up to `through` took in.

    `member` has an `organization_id` and the month `pays_from`. Balances from before this was kept stay as they are:
    what they took in is not looked at.
    """
    return f"""
        SELECT currency, sum(settled) AS settled FROM (
            SELECT currency, net AS settled
            FROM ({LEDGER_MONTHS}) AS period JOIN ledger_entry ON ledger_entry.month = period.month
            WHERE ledger_entry.organization_id = {member}.organization_id AND origin_month < {member}.pays_from
                AND period.month > {_unkept(member, through)} AND period.month <= {through}
            UNION ALL
            SELECT currency, -settled_elsewhere FROM organization_balance AS before
            WHERE before.organization_id = {member}.organization_id AND settled_elsewhere <> 0
                AND before.month > {_unkept(member, through)} AND before.month <= {through}
        ) AS each GROUP BY currency HAVING sum(settled) <> 0
    """


def _unkept(member: str, through: str) -> str:
    return f"""coalesce((
                    SELECT CAST(max(unkept.month) AS date) FROM organization_balance AS unkept
                    WHERE unkept.organization_id = {member}.organization_id AND NOT knows_history
                        AND unkept.month <= {through}), CAST('-infinity' AS date))"""
