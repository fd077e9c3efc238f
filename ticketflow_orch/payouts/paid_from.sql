-- name: own
-- Organizations with a month of their own, each with its latest change.
SELECT external_ref, payouts_from, changed_at, changed_by, count(*) OVER () AS total
FROM organization LEFT JOIN LATERAL (
    SELECT changed_at, changed_by FROM organization_change
    WHERE organization_id = organization.id AND name = 'payouts_from' ORDER BY id DESC LIMIT 1
) AS change ON true
WHERE payouts_from IS NOT NULL
ORDER BY payouts_from, external_ref LIMIT %(most)s::bigint;


-- name: earliest
-- The first month that anybody is paid for: two rows, whatever the tables hold.
SELECT least(
    (SELECT payouts_from::date FROM installation),
    (SELECT min(payouts_from) FROM organization WHERE payouts_from IS NOT NULL));


-- name: member
-- A CTE: whose month changes, from which (was) to which (pays_from), and up to where its balances go. The last balance
-- is found by organization_balance_pkey.
member AS (
    SELECT organization.id AS organization_id, {pays_from} AS was,
        CASE WHEN %(organization)s::text IS NULL THEN %(month)s::date
            ELSE coalesce(%(month)s::date, (SELECT payouts_from::date FROM installation))
        END AS pays_from,
        last.month::date AS last_month, last.knows_history
    FROM organization CROSS JOIN LATERAL (
        SELECT month, knows_history FROM organization_balance AS before
        WHERE before.organization_id = organization.id ORDER BY before.month DESC LIMIT 1
    ) AS last
    WHERE CASE WHEN %(organization)s::text IS NULL THEN organization.payouts_from IS NULL
        ELSE organization.external_ref = %(organization)s::text END
);


-- name: waiting
-- What is carried stands in the balances of the last closed month. What balances from before this was kept count as
-- paid has no payout, and its month is not paid.
WITH unpaid AS (
    SELECT organization_id, currency, closing AS amount FROM organization_balance
    WHERE month = (SELECT max(month) FROM ({periods}) AS period WHERE state = 'CLOSED') AND closing > 0
    UNION ALL
    SELECT organization_id, currency, payable
    FROM organization_balance AS balance JOIN ({periods}) AS period USING (month)
    WHERE period.state = 'CLOSED' AND period.paid_at IS NULL AND payable > 0 AND NOT EXISTS (
        SELECT FROM payout WHERE payout.organization_id = balance.organization_id
            AND payout.currency = balance.currency AND payout.month = balance.month)
)
SELECT unpaid.currency, exponent, count(DISTINCT organization_id) AS organizations, sum(amount) AS amount
FROM unpaid JOIN organization ON organization.id = organization_id JOIN currency ON code = unpaid.currency
WHERE {pays_from} IS NULL
GROUP BY unpaid.currency, exponent ORDER BY unpaid.currency;


-- name: paid_already
-- What was paid, is about to be, or is owed by a closed month. A payout that came back is owed again.
WITH {member}
SELECT external_ref, balance.month::date AS month, balance.currency, exponent, payable, payout.state
FROM member
JOIN organization_balance AS balance USING (organization_id)
JOIN organization ON organization.id = member.organization_id
JOIN currency ON code = balance.currency
LEFT JOIN payout ON payout.organization_id = balance.organization_id
    AND payout.currency = balance.currency AND payout.month = balance.month
WHERE payable > 0 AND CASE WHEN payout.state IS NULL
        THEN balance.month >= member.was AND (member.pays_from IS NULL OR balance.month < member.pays_from)
        ELSE payout.state NOT IN ('REJECTED', 'RETURNED') AND balance.month < member.pays_from
    END
ORDER BY balance.month, external_ref LIMIT 1;


-- name: pays
-- By the next closing: what is carried, and what had come off as settled elsewhere. At once: what balances from before
-- that was kept count as paid, and no payout pays.
WITH {member}, earlier AS (
    SELECT * FROM member
    WHERE (was IS NULL OR pays_from < was)
        AND pays_from <= (SELECT max(month) FROM ({periods}) AS period WHERE state = 'CLOSED')
), part AS (
    SELECT balance.organization_id, balance.currency, closing AS amount
    FROM earlier JOIN organization_balance AS balance ON balance.organization_id = earlier.organization_id
        AND balance.month = earlier.last_month
    WHERE closing <> 0
    UNION ALL
    SELECT earlier.organization_id, moved.currency, -moved.settled
    FROM earlier CROSS JOIN LATERAL ({moved}) AS moved
    WHERE earlier.knows_history
), paid AS (
    SELECT organization_id, due.currency, amount
    FROM (SELECT organization_id, currency, sum(amount) AS amount FROM part GROUP BY 1, 2) AS due
    JOIN currency ON code = due.currency
    WHERE amount >= greatest(payout_minimum, 1)
    UNION ALL
    SELECT balance.organization_id, balance.currency, payable
    FROM earlier JOIN organization_balance AS balance ON balance.organization_id = earlier.organization_id
        AND balance.month >= earlier.pays_from AND (was IS NULL OR balance.month < was)
    WHERE payable > 0 AND NOT EXISTS (
        SELECT FROM payout WHERE payout.organization_id = balance.organization_id
            AND payout.currency = balance.currency AND payout.month = balance.month)
)
SELECT paid.currency, exponent, count(DISTINCT organization_id) AS organizations, sum(amount) AS amount
FROM paid JOIN currency ON code = paid.currency
GROUP BY paid.currency, exponent ORDER BY paid.currency;


-- name: comes_off
-- By currency, what is history by the months that organizations have now, and was none when their last balance was
-- written.
WITH member AS MATERIALIZED (
    SELECT organization.id AS organization_id, last.month::date AS last_month, {pays_from} AS pays_from
    FROM organization CROSS JOIN LATERAL (
        SELECT month, payouts_from, knows_history FROM organization_balance AS before
        WHERE before.organization_id = organization.id ORDER BY before.month DESC LIMIT 1
    ) AS last
    WHERE knows_history AND last.payouts_from IS DISTINCT FROM {pays_from} AND {pays_from} IS NOT NULL
)
SELECT moved.currency, exponent, count(*) AS organizations, sum(settled) AS amount
FROM member CROSS JOIN LATERAL ({moved}) AS moved
JOIN currency ON code = moved.currency
WHERE settled > 0
GROUP BY moved.currency, exponent ORDER BY moved.currency;


-- name: unrequested
-- The payout of a balance is found by payout_organization_id_currency_month_key.
EXISTS (
    SELECT FROM organization_balance AS balance
    WHERE balance.month = period.month AND payable > 0 AND NOT EXISTS (
            SELECT FROM payout WHERE (payout.organization_id, payout.currency, payout.month)
                = (balance.organization_id, balance.currency, balance.month))
        AND balance.month >= {pays_from});
