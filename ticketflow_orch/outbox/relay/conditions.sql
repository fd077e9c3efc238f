-- name: still
-- Whether an instant is to come; one that is further away than it can be is of another clock.
({column} > clock_timestamp() AND {column} < clock_timestamp() + interval '{most}');


-- name: seconds_until
-- How far away it is, if it is to come.
(CASE WHEN {still} THEN extract(EPOCH FROM {column} - clock_timestamp()) ELSE 0 END)::float;


-- name: known
-- A destination under the names of the fields of `Condition`, and since when it fails.
failing_since IS NOT NULL AS is_failing, open_until IS NOT NULL AS is_open, {open_for} AS open_for,
    {probed_for} AS probed_for, {paused_for} AS paused_for, rate::float AS rate, {next_for} AS next_for, name,
    failing_since, extract(EPOCH FROM clock_timestamp() - failing_since)::float AS failing_for, last_error;


-- name: conditions
-- All destinations of which anything is known, which are a handful.
SELECT {known} FROM delivery_destination;
