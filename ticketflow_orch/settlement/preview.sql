-- name: changed_chunks
{changed_chunks} SELECT * FROM changed_chunk ORDER BY origin_month, low_id;
