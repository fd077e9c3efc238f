"""Which currency an organization has in a month, and whether a currency was in use at an instant: as SQL."""

from __future__ import annotations

from ticketflow_orch.db.sql_files import sql

# Currencies that are not in use any more: code, last_day, and organization_id and external_ref of everybody active for
# whom no other one is decided.
STILL_IN_WITHDRAWN = sql(__file__, "still_in_withdrawn", today=sql(__file__, "today"))


def currency_of(month: str, organization: str = "organization") -> str:
    """The expression for the currency that the row `organization` has in the month that begins on the date `month`."""
    return sql(__file__, "currency_of", month=month, organization=organization)


def out_of_use(instant: str, currency: str = "currency") -> str:
    """The condition that the row `currency` was not in use at `instant`, by more than a month.

    NULL where its days are not known.
    """
    return sql(__file__, "out_of_use", instant=instant, currency=currency)
