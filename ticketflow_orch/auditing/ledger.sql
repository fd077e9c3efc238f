-- name: unknown_months
-- Months that hold entries and have no period: the months of the ledger by one probe of its key each.
WITH RECURSIVE posted (month) AS (
    (SELECT month::date FROM ledger_entry ORDER BY month LIMIT 1)
    UNION ALL
    SELECT (SELECT month::date FROM ledger_entry WHERE month > posted.month ORDER BY month LIMIT 1)
    FROM posted WHERE month IS NOT NULL
)
SELECT posted.month::date, '', '', 'holds entries, and no settlement of it ever began'
FROM posted LEFT JOIN ({periods}) AS period USING (month)
WHERE posted.month IS NOT NULL AND state IS NULL;


-- name: misplaced
-- Keys of a month whose entries have a gap in their numbers, or are about a later month; by the key, which begins with
-- the month.
SELECT %(month)s::date, coalesce(external_ref, 'id ' || organization_id), misplaced.currency,
    CASE WHEN origin_month > %(month)s::date
        THEN 'has entries about ' || to_char(origin_month, 'YYYY-MM') || ', which is later'
        ELSE entries || ' entries about ' || to_char(origin_month, 'YYYY-MM') || ' are numbered from '
            || first || ' to ' || last
    END
FROM (
    SELECT organization_id, currency, origin_month::date AS origin_month, min(sequence) AS first,
        max(sequence) AS last, count(*) AS entries
    FROM ledger_entry
    WHERE month = %(month)s::date AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    GROUP BY organization_id, currency, origin_month
    HAVING min(sequence) <> 0 OR max(sequence) + 1 <> count(*) OR origin_month > %(month)s::date
) AS misplaced LEFT JOIN organization ON organization.id = organization_id;


-- name: of_nobody
-- Entries and balances of a month whose organization or currency does not exist: the ledger has no foreign keys.
SELECT %(month)s::date, 'id ' || organization_id, written.currency, where_found || CASE
        WHEN NOT EXISTS (SELECT FROM organization WHERE id = organization_id)
            THEN ' of an organization that does not exist'
        ELSE ' in a currency that does not exist'
    END
FROM (
    SELECT organization_id, currency, 'entries' AS where_found FROM ledger_entry WHERE month = %(month)s::date
    UNION
    SELECT organization_id, currency, 'a balance' FROM organization_balance WHERE month = %(month)s::date
) AS written
WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint AND (
    NOT EXISTS (SELECT FROM organization WHERE id = organization_id)
    OR NOT EXISTS (SELECT FROM currency WHERE code = written.currency));


-- name: wrong_totals
-- Totals of a month that are not the sums of what was posted in it. A pass that was given up may have posted since;
-- the next one that is done writes its entries into the totals.
WITH done AS (
    SELECT max(pass) AS pass FROM settlement_pass WHERE month = %(month)s::date AND state = 'DONE'
), posted AS (
    SELECT currency, count(*) FILTER (WHERE origin_month = month AND sequence = 0) AS organizations,
        sum(captures) AS captures, sum(refunds) AS refunds, sum(chargebacks) AS chargebacks, sum(fees) AS fees,
        sum(commission) AS commission, sum(commission_tax) AS commission_tax, sum(net) AS net
    FROM ledger_entry, done
    WHERE month = %(month)s::date AND settlement_pass <= done.pass
    GROUP BY currency
), total AS (
    SELECT currency, organizations, captures, refunds, chargebacks, fees, commission, commission_tax, net
    FROM settlement_total WHERE month = %(month)s::date
)
SELECT %(month)s::date, '', currency, 'the total is ' || coalesce(total.net::text, 'missing')
    || ' net of ' || coalesce(total.organizations, 0) || ' organizations, the entries come to '
    || coalesce(posted.net, 0) || ' of ' || coalesce(posted.organizations, 0)
FROM total FULL JOIN posted USING (currency), done
WHERE done.pass IS NOT NULL AND (
    total.organizations, total.captures, total.refunds, total.chargebacks, total.fees, total.commission,
    total.commission_tax, total.net
) IS DISTINCT FROM (
    posted.organizations, posted.captures, posted.refunds, posted.chargebacks, posted.fees, posted.commission,
    posted.commission_tax, posted.net);


-- name: misplaced_balances
-- Balances of months that are not closed, and opening balances that count as taken in and are in no balance.
SELECT balance.month::date, coalesce(external_ref, 'id ' || organization_id), balance.currency,
    'has a balance of ' || closing || ', and the month is ' || coalesce(state, 'never settled')
FROM organization_balance AS balance
LEFT JOIN ({periods}) AS period ON period.month = balance.month
LEFT JOIN organization ON organization.id = organization_id
WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND coalesce(state, 'OPEN') NOT IN ('CLOSING', 'CLOSED')
UNION ALL
SELECT balance_month::date, external_ref, opening.currency,
    'has an opening balance of ' || amount || ' that counts as taken in, and no balance'
FROM opening_balance AS opening JOIN organization ON organization.id = organization_id
WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint AND balance_month IS NOT NULL AND NOT EXISTS (
    SELECT FROM organization_balance AS balance
    WHERE balance.organization_id = opening.organization_id AND balance.month = opening.balance_month
        AND balance.currency = opening.currency);


-- name: out_of_order
-- Months between the first period and the last closed one that are not closed themselves.
WITH known AS (
    SELECT min(month) AS first, max(month) FILTER (WHERE state = 'CLOSED') AS last_closed FROM ({periods}) AS period
)
SELECT day::date, '', '', 'is ' || coalesce(state, 'not settled') || ', and '
    || to_char(last_closed, 'YYYY-MM') || ' is closed'
FROM known CROSS JOIN LATERAL generate_series(
    first::timestamp, last_closed::timestamp, interval '1 month') AS day
LEFT JOIN ({periods}) AS period ON period.month = day::date
WHERE state IS DISTINCT FROM 'CLOSED';


-- name: inconsistent_passes
-- What no run can have left of passes, chunks and what periods say was read. Of a pass from when cutoffs were
-- instants less counts as read than it had read, since clocks may have been wrong.
SELECT month::date, 'pass ' || pass, '', 'is RUNNING in a month that is ' || period.state
FROM settlement_pass JOIN ({periods}) AS period USING (month)
WHERE settlement_pass.state = 'RUNNING' AND period.state IN ('CLOSING', 'CLOSED')
UNION ALL
SELECT month::date, 'pass ' || pass, '',
    'is ' || settlement_pass.state || ' with ' || count(*) || ' chunks that nobody has worked on'
FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
WHERE settlement_pass.state <> 'RUNNING' AND chunk.state = 'PLANNED'
GROUP BY month, pass, settlement_pass.state
UNION ALL
SELECT month::date, '', '', 'is ' || state || ' and says nothing of what was read of it'
FROM ({periods}) AS period WHERE state <> 'OPEN' AND read_to IS NULL
UNION ALL
SELECT month::date, '', '', 'was read to ' || read_to || ', which is the cutoff of no pass that is done'
FROM ({periods}) AS period
WHERE read_to IS NOT NULL AND NOT EXISTS (
    SELECT FROM settlement_pass WHERE settlement_pass.state = 'DONE'
        AND (cutoff = read_to OR (cutoff > read_to AND recorded_before IS NOT NULL))
        AND (settlement_pass.month = period.month OR closed_through >= period.month));


-- name: windows_apart
-- Windows that do not begin where the same zone's window of the month before ends.
SELECT later.month::date, later.timezone, '', 'begins at ' || to_char(later.starts_at, 'YYYY-MM-DD HH24:MI')
    || ', and the month before ends at ' || to_char(earlier.ends_at, 'YYYY-MM-DD HH24:MI') || ' UTC'
FROM settlement_window AS later
JOIN settlement_window AS earlier ON earlier.timezone = later.timezone
    AND earlier.month = CAST(later.month - interval '1 month' AS date)
WHERE later.starts_at <> earlier.ends_at;


-- name: before_the_first_month
-- Movements from before the first month that nothing will read. A month whose windows are fixed was settled, or
-- read for what came late: what became of it, the ledger tells. In others nothing is read before the first month is
-- closed, and from then on only what comes late.
SELECT NULL::date, organization.external_ref, early.currency,
    early.external_ref || ' of ' || to_char(occurred_at, 'YYYY-MM-DD HH24:MI') || ' UTC over ' || amount
FROM money_movement AS early
JOIN organization ON organization.id = organization_id
JOIN unnest(%(timezones)s::text[], %(starts)s::timestamptz[]) AS zone_start (timezone, starts_at)
    USING (timezone)
WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND occurred_at < %(latest)s::timestamptz AND occurred_at < starts_at
    AND NOT EXISTS (
        SELECT FROM settlement_window AS cut
        WHERE cut.timezone = organization.timezone AND occurred_at >= cut.starts_at AND occurred_at < cut.ends_at)
    AND early.id < coalesce((
        SELECT read_to FROM ({periods}) AS period WHERE state = 'CLOSED' ORDER BY month LIMIT 1), {largest_id});
