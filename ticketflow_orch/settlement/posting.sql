-- name: post_first
-- For a pass that began when the ledger held nothing of the month. Without ON CONFLICT, which costs a sixth of a
-- settlement and has nothing to do here: the chunk is locked. Should somebody else post all the same, the key refuses.
WITH {recomputed}
INSERT INTO ledger_entry ({columns}, settlement_pass, run_id)
SELECT organization_id, %(month)s::date, currency, %(origin)s::date, 0, {join_amounts},
    %(pass)s::integer, %(run_id)s::text
FROM recomputed
ORDER BY organization_id, currency;
