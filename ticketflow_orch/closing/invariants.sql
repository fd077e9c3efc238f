-- name: missing
-- Keys of the month's ledger, amounts carried (by the index of those that are not zero), payouts that came back and
-- opening balances, without a balance of the month. Of a month that is being closed the parked are left aside.
WITH being_closed AS (
    SELECT month FROM ({closing_month}) AS period WHERE month = %(month)s
), wanted (organization_id, currency, what) AS (
    SELECT DISTINCT organization_id, currency, 'has entries and no balance' FROM ledger_entry WHERE month = %(month)s
    UNION ALL
    SELECT organization_id, currency, 'carries ' || closing || ' and has no balance'
    FROM organization_balance AS carried
    WHERE closing <> 0 AND month < %(month)s AND NOT EXISTS (
        SELECT FROM organization_balance AS later
        WHERE later.organization_id = carried.organization_id AND later.currency = carried.currency
            AND later.month > carried.month AND later.month < %(month)s)
    UNION ALL
    SELECT organization_id, currency, 'got a payout back and has no balance' FROM payout
    WHERE returned_month = %(month)s
    UNION ALL
    SELECT organization_id, currency, 'has an opening balance of ' || amount || ' and no balance'
    FROM opening_balance, being_closed
    WHERE balance_month IS NULL AND NOT EXISTS (
        SELECT FROM organization_balance AS there
        WHERE there.organization_id = opening_balance.organization_id AND there.month = %(month)s)
), bad AS (
    SELECT DISTINCT ON (organization_id, currency) wanted.* FROM wanted
    WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
        AND NOT EXISTS (
            SELECT FROM organization_balance AS balance
            WHERE balance.organization_id = wanted.organization_id AND balance.month = %(month)s
                AND balance.currency = wanted.currency)
        AND NOT EXISTS (
            SELECT FROM organization_left_out AS left_out
            WHERE left_out.organization_id = wanted.organization_id AND left_out.month = %(month)s)
        AND NOT EXISTS (
            SELECT FROM parked_organization AS parked, being_closed
            WHERE parked.organization_id = wanted.organization_id AND parked.month <= being_closed.month
                AND resolved_at IS NULL)
    ORDER BY organization_id, currency, what
)
{examples};


-- name: broken
-- Balances that do not begin where the last ones of their keys ended; each finds its own by the balances' key.
WITH balance AS (
    SELECT * FROM organization_balance
    WHERE month = %(month)s AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
), linked AS (
    SELECT balance.*, previous.month AS true_month,
        CAST(coalesce(previous.closing, 0) AS numeric) AS true_opening, (
            SELECT coalesce(sum(amount), 0) FROM opening_balance
            WHERE opening_balance.organization_id = balance.organization_id
                AND opening_balance.currency = balance.currency AND balance_month = %(month)s
        ) AS brought, (
            SELECT coalesce(sum(amount), 0) FROM payout
            WHERE payout.organization_id = balance.organization_id AND payout.currency = balance.currency
                AND returned_month = %(month)s
        ) AS came_back
    FROM balance LEFT JOIN LATERAL (
        SELECT month, closing FROM organization_balance AS before
        WHERE before.organization_id = balance.organization_id AND before.currency = balance.currency
            AND before.month < %(month)s
        ORDER BY before.month DESC LIMIT 1
    ) AS previous ON true
), bad AS (
    SELECT organization_id, currency, CASE
            WHEN true_month IS DISTINCT FROM previous_month THEN 'follows ' || coalesce(
                to_char(previous_month, 'YYYY-MM'), 'nothing') || ' instead of ' || coalesce(
                to_char(true_month, 'YYYY-MM'), 'nothing')
            WHEN opening <> true_opening + brought THEN
                'opens with ' || opening || ' instead of ' || true_opening + brought
            ELSE 'returned ' || returned || ', while ' || came_back || ' came back'
        END AS what
    FROM linked
    WHERE true_month IS DISTINCT FROM previous_month OR opening <> true_opening + brought OR returned <> came_back
)
{examples};


-- name: changed
-- Balances beside what the ledger has of their key since the balances before, by the ledger's key for each month. The
-- history of a balance from before that was kept is nothing. What earlier balances took in is looked at only where the
-- month from which the organization is paid is another than in its balance before.
WITH posted AS (
    SELECT balance.organization_id, balance.currency, balance.net, coalesce(entry.net, 0) AS posted_net,
        settled_elsewhere, CASE WHEN knows_history THEN coalesce(entry.settled, 0) ELSE 0 END AS posted_settled,
        balance.month::date AS month, balance.payouts_from::date AS pays_from, knows_history
    FROM organization_balance AS balance CROSS JOIN LATERAL (
        SELECT sum(ledger_entry.net) AS net,
            sum(ledger_entry.net) FILTER (WHERE origin_month < balance.payouts_from) AS settled
        FROM ({ledger_months}) AS period JOIN ledger_entry ON ledger_entry.month = period.month
        WHERE ledger_entry.organization_id = balance.organization_id AND ledger_entry.currency = balance.currency
            AND period.month > coalesce(balance.previous_month::date, '-infinity')
            AND period.month <= %(month)s
    ) AS entry
    WHERE balance.month = %(month)s
        AND balance.organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
), judged AS (
    SELECT posted.*, posted_settled + coalesce((
            SELECT moved.settled
            FROM (
                SELECT month AS last_month, payouts_from, before.knows_history FROM organization_balance AS before
                WHERE before.organization_id = posted.organization_id AND before.month < %(month)s
                ORDER BY before.month DESC LIMIT 1
            ) AS last CROSS JOIN LATERAL ({moved}) AS moved
            WHERE posted.knows_history AND posted.pays_from IS NOT NULL AND last.knows_history
                AND last.payouts_from IS DISTINCT FROM posted.pays_from AND moved.currency = posted.currency
        ), 0) AS true_settled
    FROM posted
), bad AS (
    SELECT organization_id, currency, CASE WHEN net <> posted_net
            THEN 'balanced ' || net || ', posted ' || posted_net
            ELSE 'settled elsewhere ' || settled_elsewhere || ' instead of ' || true_settled
        END AS what
    FROM judged WHERE net <> posted_net OR settled_elsewhere <> true_settled
)
{examples};


-- name: examples
-- The first few of the rows of `bad` (organization_id, currency, what), and how many there are.
SELECT coalesce(external_ref, 'id ' || organization_id) AS external_ref, bad.currency, bad.what,
    count(*) OVER () AS breaches
FROM bad LEFT JOIN organization ON organization.id = organization_id
ORDER BY organization_id, bad.currency LIMIT %(examples)s;
