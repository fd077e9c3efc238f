-- name: first_instants
-- When the first month begins in each time zone that tzdata knows.
CREATE TEMP TABLE first_instant ON COMMIT DROP AS
SELECT * FROM unnest(%(zones)s::text[], %(instants)s::timestamptz[]) AS zone (timezone, starts_at);


-- name: repeated
-- The keys that several staged rows of one kind have, with the line of the first.
SELECT {key}, min(line) AS first_line FROM staged_{table} GROUP BY {key} HAVING count(*) > 1;


-- name: repeats
-- The rows that repeat the key of an earlier line, as problems; `column` is the last of the key.
SELECT line, {position} AS position, '{column}' AS "column", staged.{column}::text AS value,
    'stands on line ' || first_line || ' already' AS reason
FROM staged_{table} AS staged JOIN ({repeated}) AS repeated USING ({key})
WHERE line > first_line;


-- name: drop_repeats
-- Let the first row of each key stay alone.
DELETE FROM staged_{table} AS staged USING ({repeated}) AS repeated
WHERE ({staged_key}) = ({repeated_key}) AND line > first_line;


-- name: linked_organizations
-- What each staged organization refers to: `present` is the row that has the same reference already, by its unique key.
-- An id that was drawn for such a row stays unused.
SELECT staged.*, present.id AS present_id
FROM staged_organization AS staged
LEFT JOIN organization AS present ON present.external_ref = staged.external_ref;


-- name: linked_events
-- As of organizations; the organization of an event is one that is stored, or one of the folder.
SELECT staged.*, present.id AS present_id,
    coalesce(stored_organization.id, new_organization.id) AS organization_id
FROM staged_event AS staged
LEFT JOIN event AS present ON present.external_ref = staged.external_ref
LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref;


-- name: linked_reservations
-- As of organizations; with the event, its status, and whose it is.
SELECT staged.*, present.id AS present_id,
    coalesce(stored_event.id, new_event.id) AS event_id,
    coalesce(stored_event.status, new_event.status) AS event_status,
    coalesce(stored_organization.external_ref, new_event.organization_ref) AS organization_ref
FROM staged_reservation AS staged
LEFT JOIN reservation AS present ON present.public_ref = staged.external_ref
LEFT JOIN event AS stored_event ON stored_event.external_ref = staged.event_ref
LEFT JOIN organization AS stored_organization ON stored_organization.id = stored_event.organization_id
LEFT JOIN staged_event AS new_event ON new_event.external_ref = staged.event_ref;


-- name: linked_money_movements
-- As of organizations; with the organization, the instant at which its first month begins, the reservation and who
-- sells it, what the movement reverses, and what voids that already, be it in an earlier line of the folder.
SELECT staged.*, present.id AS present_id,
    coalesce(stored_organization.id, new_organization.id) AS organization_id,
    coalesce(stored_organization.timezone, new_organization.timezone) AS timezone,
    first_instant.starts_at AS first_instant,
    coalesce(stored_reservation.id, new_reservation.id) AS reservation_id,
    coalesce(stored_seller.external_ref, new_reservation.organization_ref) AS seller_ref,
    coalesce(stored_target.id, new_target.id) AS reverses_id,
    coalesce(stored_target.kind, new_target.kind) AS target_kind,
    coalesce(stored_target.is_void, new_target.is_void) AS target_is_void,
    coalesce(stored_owner.external_ref, new_target.organization_ref) AS target_organization_ref,
    coalesce(stored_target.currency::text, new_target.currency) AS target_currency,
    coalesce(stored_target.amount, new_target.amount) AS target_amount,
    coalesce(stored_target.commission_rate_bps, new_target.commission_rate_bps) AS target_rate_bps,
    coalesce(stored_target.commission_tax_bps, new_target.commission_tax_bps) AS target_tax_bps,
    coalesce(stored_target.occurred_at, new_target.occurred_at) AS target_occurred_at,
    coalesce(stored_void.external_ref, new_void.external_ref) AS voided_by
FROM staged_money_movement AS staged
LEFT JOIN money_movement AS present ON present.external_ref = staged.external_ref
LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref
LEFT JOIN first_instant
    ON first_instant.timezone = coalesce(stored_organization.timezone, new_organization.timezone)
LEFT JOIN reservation AS stored_reservation ON stored_reservation.public_ref = staged.reservation_ref
LEFT JOIN event AS stored_event ON stored_event.id = stored_reservation.event_id
LEFT JOIN organization AS stored_seller ON stored_seller.id = stored_event.organization_id
LEFT JOIN linked_reservation AS new_reservation ON new_reservation.external_ref = staged.reservation_ref
LEFT JOIN money_movement AS stored_target ON stored_target.external_ref = staged.reverses_ref
LEFT JOIN organization AS stored_owner ON stored_owner.id = stored_target.organization_id
LEFT JOIN staged_money_movement AS new_target ON new_target.external_ref = staged.reverses_ref
LEFT JOIN money_movement AS stored_void
    ON staged.is_void AND stored_void.is_void AND stored_void.reverses_id = stored_target.id
LEFT JOIN (
    SELECT DISTINCT ON (reverses_ref) reverses_ref, line, external_ref
    FROM staged_money_movement WHERE is_void ORDER BY reverses_ref, line
) AS new_void
    ON staged.is_void AND new_void.reverses_ref = staged.reverses_ref AND new_void.line < staged.line;


-- name: linked_opening_balances
-- As of organizations; with the first month in which the organization has a balance in that currency.
SELECT staged.*, present.id AS present_id,
    coalesce(stored_organization.id, new_organization.id) AS organization_id,
    (
        SELECT min(month) FROM organization_balance AS balance
        WHERE balance.organization_id = stored_organization.id
            AND balance.currency::text = staged.currency
    ) AS balanced_since
FROM staged_opening_balance AS staged
LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref
LEFT JOIN opening_balance AS present
    ON present.organization_id = stored_organization.id AND present.currency::text = staged.currency;
