-- name: end_of_kinds
-- What was left out for the sake of a kind that is not there any more.
DELETE FROM bad_row WHERE job = '{reminding}' AND NOT EXISTS (
    SELECT FROM unnest(%(scopes)s::text[]) AS scope WHERE starts_with(row_key, scope));


-- name: timezones_within
SELECT DISTINCT timezone FROM event WHERE status IN ('OPEN', 'CLOSED') AND {within} ORDER BY timezone;


-- name: any_to_try
SELECT {any_to_try_reminding};
