"""Which currency an organization has in a month, and whether a currency was in use at an instant: as SQL."""

from __future__ import annotations

# What is entered a month beside a changeover may be about the days before or after it.
_GRACE = 31

_TODAY = "CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)"
_ACTIVE = f"(left_on IS NULL OR left_on >= {_TODAY})"

# Currencies that are not in use any more: code, last_day, and organization_id and external_ref of everybody active for
# whom no other one is decided. The organizations' currencies are found by one index probe each.
STILL_IN_WITHDRAWN = f"""
    WITH RECURSIVE own (code) AS (
        (SELECT currency FROM organization ORDER BY currency LIMIT 1)
        UNION ALL
        SELECT (SELECT currency FROM organization WHERE currency > own.code ORDER BY currency LIMIT 1)
        FROM own WHERE code IS NOT NULL
    ), withdrawn AS MATERIALIZED (
        SELECT code, last_day FROM currency
        WHERE last_day < {_TODAY}
            AND code IN (SELECT code FROM own UNION ALL SELECT currency FROM organization_currency)
    )
    SELECT code, last_day, still.* FROM withdrawn CROSS JOIN LATERAL (
        SELECT id AS organization_id, external_ref FROM organization
        WHERE organization.currency = withdrawn.code AND {_ACTIVE}
            AND NOT EXISTS (SELECT FROM organization_currency WHERE organization_id = organization.id)
        UNION ALL
        SELECT organization.id, external_ref
        FROM organization_currency AS decided JOIN organization ON organization.id = decided.organization_id
        WHERE decided.currency = withdrawn.code AND {_ACTIVE}
            AND NOT EXISTS (
                SELECT FROM organization_currency AS later
                WHERE later.organization_id = decided.organization_id
                    AND (later.from_month, later.id) > (decided.from_month, decided.id))
    ) AS still"""


def currency_of(month: str, organization: str = "organization") -> str:
    """The expression for the currency that the row `organization` has in the month that begins on the date `month`.

    Nearly everywhere no currency was ever replaced, and then nothing is looked up: that is asked once a statement.
    """
    return f"""CASE WHEN EXISTS (SELECT FROM organization_currency) THEN coalesce((
                SELECT decided.currency FROM organization_currency AS decided
                WHERE decided.organization_id = {organization}.id AND decided.from_month <= {month}
                ORDER BY decided.from_month DESC, decided.id DESC LIMIT 1
            ), {organization}.currency) ELSE {organization}.currency END"""


def out_of_use(instant: str, currency: str = "currency") -> str:
    """The condition that the row `currency` was not in use at `instant`, by more than a month.

    NULL where its days are not known.
    """
    return f"""({instant} >= CAST({currency}.last_day + {_GRACE + 1} AS timestamp) AT TIME ZONE 'UTC'
            OR {instant} < CAST({currency}.first_day - {_GRACE} AS timestamp) AT TIME ZONE 'UTC')"""
