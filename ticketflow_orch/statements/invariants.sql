-- name: books
-- The sums of a month's balances by currency, and of the ledger behind them. A balance takes in what was posted since
-- the one before. Most have one in the month before; what was posted in the month itself is added up for all at once,
-- and only for the others their earlier months are looked up.
WITH balance AS MATERIALIZED (
    SELECT organization_id, currency, previous_month::date AS previous_month, net, due, payable, closing
    FROM organization_balance WHERE month = %(month)s::date
), entry AS (
    SELECT balance.currency, ledger_entry.net
    FROM ledger_entry JOIN balance USING (organization_id, currency)
    WHERE month = %(month)s::date
    UNION ALL
    SELECT balance.currency, ledger_entry.net
    FROM balance JOIN ledger_entry USING (organization_id, currency)
    WHERE previous_month IS DISTINCT FROM %(previous)s::date AND month < %(month)s::date
        AND (previous_month IS NULL OR month > previous_month)
), posted AS (
    SELECT currency, sum(net) AS posted FROM entry GROUP BY currency
)
SELECT balance.currency, exponent, coalesce(posted, 0) AS posted, sum(net) AS net, sum(due) AS due,
    sum(payable) AS payable, sum(closing) AS closing
FROM balance JOIN currency ON code = balance.currency LEFT JOIN posted ON posted.currency = balance.currency
GROUP BY balance.currency, exponent, posted
ORDER BY balance.currency;
