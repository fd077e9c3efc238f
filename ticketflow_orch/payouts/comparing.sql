-- name: found
-- What we know of the references that a provider has, and all payouts of a month of which it has all. A closed balance
-- that pays and was not asked for yet has its reference already, which is made of it; there are few of those.
SELECT public_id AS reference, external_ref AS organization, month, payout.currency, exponent, amount, payout.state
FROM payout
JOIN organization ON organization.id = organization_id
JOIN currency ON code = payout.currency
WHERE public_id = ANY (%(references)s::uuid[]) OR month = %(complete)s::date
UNION ALL
SELECT asked.reference, external_ref, balance.month, balance.currency, exponent, balance.payable, NULL
FROM organization_balance AS balance
JOIN organization ON organization.id = balance.organization_id
JOIN currency ON code = balance.currency
CROSS JOIN LATERAL (
    SELECT derived_id((SELECT id FROM installation), 'payout',
        external_ref || ':' || balance.currency || ':' || to_char(balance.month, 'YYYY-MM')) AS reference) AS asked
WHERE balance.payable > 0 AND asked.reference = ANY (%(references)s::uuid[])
    AND NOT EXISTS (
        SELECT FROM payout
        WHERE (payout.organization_id, payout.currency, payout.month)
            = (balance.organization_id, balance.currency, balance.month));
