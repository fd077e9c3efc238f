"""The calendar that every monthly asset shares: one partition a month, named `YYYY-MM`.

Start, key format and time zone are decided once: changing them later breaks backfills that are running.
"""

import warnings

import dagster as dg

from ticketflow_orch.settings import settings

# A month becomes a partition when it is over in the business time zone; whether it is over in every organization's
# zone is for the settlement to say.
months = dg.MonthlyPartitionsDefinition(
    start_date=settings().first_month, fmt="%Y-%m", timezone=settings().business_timezone
)

# A beta of Dagster 1.13, pinned and tried; what it warns of at every start helps nobody.
warnings.filterwarnings("ignore", "Parameter `backfill_policy`", dg.BetaWarning)
