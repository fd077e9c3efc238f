-- name: take_next
-- The next rows that are due behind a place in the order of their instant, all ids in one array. Each look goes on
-- where the last one ended: what was done before lies dead at the beginning of the index.
SELECT array_agg(id) AS ids, max(at)::text AS at FROM (
    {due} AND id <> ALL (%(left_out)s::bigint[])
        AND ({instant}, id) > (%(from_at)s::timestamptz, %(from_id)s::bigint)
    ORDER BY {instant}, id LIMIT %(size)s::bigint {locking}
) AS chunk;


-- name: take_these
-- Those of the given rows that are still due, in the same order.
SELECT array_agg(id) AS ids, max(at)::text AS at FROM (
    {due} AND id = ANY (%(only)s::bigint[])
    ORDER BY {instant}, id LIMIT %(size)s::bigint {locking}
) AS chunk;
