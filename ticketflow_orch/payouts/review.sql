-- name: review
-- What a month pays by currency, beside the greatest of the last months with payouts. Of those, what was sent counts:
-- payouts that are held or came back are no measure. Both months are found through the BRIN indexes on month.
WITH payable AS (
    SELECT currency, count(*) AS payouts, sum(payable) AS total
    FROM organization_balance
    WHERE month = %(month)s::date AND payable > 0 AND month >= {pays_from}
    GROUP BY currency
), paid AS (
    SELECT currency, sum(amount) AS total, row_number() OVER (PARTITION BY currency ORDER BY month DESC) AS place
    FROM payout WHERE month < %(month)s::date AND state NOT IN ('HELD', 'REJECTED') GROUP BY currency, month
)
SELECT currency, exponent, payouts, payable.total,
    (SELECT max(paid.total) FROM paid
        WHERE paid.currency = payable.currency AND place <= %(compared)s::integer) AS greatest,
    EXISTS (SELECT FROM alert WHERE kind = %(kind)s AND key = %(key)s::text || currency) AS held_before
FROM payable JOIN currency ON code = currency
ORDER BY currency;
