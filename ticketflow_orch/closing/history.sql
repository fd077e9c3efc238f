-- name: pays_from
-- Its own month or, where it has none, the installation's; there is one row of that.
coalesce({organization}.payouts_from, (SELECT payouts_from::date FROM installation));


-- name: pays_from_of
-- By the key of organizations.
(SELECT {pays_from} FROM organization AS paid WHERE paid.id = {organization_id});


-- name: moved
-- What balances took in, by the ledger's key for each month, and what came off of them, by theirs.
SELECT currency, sum(settled) AS settled FROM (
    SELECT currency, net AS settled
    FROM ({ledger_months}) AS period JOIN ledger_entry ON ledger_entry.month = period.month
    WHERE ledger_entry.organization_id = {member}.organization_id AND origin_month < {member}.pays_from
        AND period.month > {unkept} AND period.month <= {through}
    UNION ALL
    SELECT currency, -settled_elsewhere FROM organization_balance AS before
    WHERE before.organization_id = {member}.organization_id AND settled_elsewhere <> 0
        AND before.month > {unkept} AND before.month <= {through}
) AS each GROUP BY currency HAVING sum(settled) <> 0;


-- name: unkept
-- The last month of a balance from before history was kept.
coalesce((
    SELECT max(unkept.month)::date FROM organization_balance AS unkept
    WHERE unkept.organization_id = {member}.organization_id AND NOT knows_history
        AND unkept.month <= {through}), '-infinity'::date);
