-- name: reservations
-- The buyer's reservations, each with the reason why its address stays; NULL where it goes. Reads all reservations.
SELECT reservation.id, public_ref, event.external_ref AS event, reservation.status,
    CASE
        WHEN reservation.status = 'ACTIVE' AND stuck_reported_at IS NOT NULL
            THEN 'its payment is stuck: `ticketflow reservations resolve ' || public_ref || '` ends that'
        WHEN reservation.status = 'ACTIVE' THEN 'it is being bought'
        WHEN reservation.status IN ('EXPIRED', 'CANCELLED') AND EXISTS (SELECT {kept_capture})
            THEN 'its money is here and has no ticket: refund it first'
        WHEN (reservation.status = 'CONFIRMED'
                OR EXISTS (SELECT FROM money_movement AS paid WHERE paid.reservation_id = reservation.id))
            AND ends_at >= %(over_before)s::timestamptz
            THEN 'its event ends ' || to_char(ends_at AT TIME ZONE event.timezone, 'YYYY-MM-DD')
                || ', and refunds and disputes come until '
                || to_char((ends_at + (%(now)s::timestamptz - %(over_before)s::timestamptz))
                    AT TIME ZONE event.timezone, 'YYYY-MM-DD')
    END AS stays
FROM reservation JOIN event ON event.id = event_id
WHERE lower(buyer_email) = lower(%(address)s::text)
ORDER BY reservation.id
{lock};


-- name: concerns_them
-- A condition on `outbox_event`: it was rendered for a reservation that lets go, or names the buyer, and is not about
-- one that stays.
{about} <> ALL (%(staying)s::text[])
    AND ({about} = ANY (%(going)s::text[]) AND body IS NOT NULL
        OR EXISTS (
            SELECT FROM unnest(%(patterns)s::text[]) AS pattern
            WHERE concat_ws(' ', payload::text, last_error, last_response, encode(body, 'escape')) ~* pattern));


-- name: events_counted
-- How many events would be deleted.
SELECT count(*) FROM outbox_event WHERE ended_at IS NOT NULL AND {concerns_them};


-- name: events_gone
-- Deletes the events that have ended, as the retention would later, with their attempts; how many.
WITH gone AS (
    DELETE FROM outbox_event WHERE ended_at IS NOT NULL AND {concerns_them} RETURNING id
), attempted AS (
    DELETE FROM outbox_attempt USING gone WHERE outbox_id = gone.id
)
SELECT count(*) FROM gone;


-- name: left
-- The first events that name the buyer and stay, and why.
SELECT event_id, CASE
    WHEN ended_at IS NULL THEN 'it is ' || state || ': deliver it, or drop it by `ticketflow outbox drop '
        || event_id || '`, and erase again'
    ELSE 'it is about a reservation that stays' END AS why
FROM outbox_event
WHERE (ended_at IS NULL AND {concerns_them})
    OR ({about} = ANY (%(staying)s::text[]) AND body IS NOT NULL)
ORDER BY id LIMIT 100;


-- name: columns
-- Every column of texts that is no key, of tables that are not the business's books; names from the catalogue, quoted.
SELECT quote_ident(relname) AS table_name, quote_ident(attname) AS column_name,
    format_type(atttypid, atttypmod) AS data_type
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
    AND atttypid IN ('text'::regtype, 'jsonb'::regtype) AND relname <> ALL (%(books)s::text[])
    AND NOT EXISTS (
        SELECT FROM pg_index WHERE indrelid = attrelid AND indisunique AND attnum = ANY (indkey))
ORDER BY relname, attnum;


-- name: hits
-- In how many rows of a column a pattern is found.
SELECT count(*) FROM {table} WHERE {column}::text ~* %(pattern)s;


-- name: strike_out
-- Strikes a pattern out of a column.
UPDATE {table} SET {column} = CAST(regexp_replace({column}::text, %(pattern)s, 'erased', 'gi') AS {type})
WHERE {column}::text ~* %(pattern)s;
