-- name: changed_chunks
-- The chunks that a pass would cut, of organizations that can have changed.
{changed_chunks} SELECT * FROM changed_chunk ORDER BY origin_month, low_id;


-- name: would_post
-- What a chunk would post, with the net that the ledger has of the same key; by the ledger's key for each month.
WITH {difference}
SELECT external_ref, difference.*, exponent, (
        SELECT coalesce(sum(entry.net), 0) FROM ledger_entry AS entry
        WHERE entry.organization_id = difference.organization_id AND entry.currency = difference.currency
            AND entry.month = ANY (%(posting_months)s::date[]) AND entry.origin_month = %(origin)s::date
    ) AS posted
FROM difference
JOIN organization ON organization.id = organization_id
JOIN currency ON code = difference.currency
WHERE differs OR (is_new AND %(month)s::date = %(origin)s::date)
ORDER BY organization_id, difference.currency;
