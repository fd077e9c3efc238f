-- name: queue
-- A mail for each statement of a chunk of organizations whose contact is known and whose month is not history, once by
-- statement_mail_pkey, and its event.
WITH mailed AS (
    INSERT INTO statement_mail (organization_id, currency, month, outbox_event_id)
    SELECT organization_id, balance.currency, balance.month, {event_id}
    FROM organization_balance AS balance
    JOIN organization ON organization.id = organization_id AND contact_email <> ''
    JOIN settlement_window ON settlement_window.month = balance.month
        AND settlement_window.timezone = organization.timezone
    WHERE balance.month = %(month)s::date AND organization_id = ANY (%(organizations)s::bigint[])
        AND ends_at >= %(mail_from)s::timestamptz
        AND NOT EXISTS (
            SELECT FROM unnest(%(without)s::bigint[], %(in_currency)s::text[]) AS left_out (id, currency)
            WHERE left_out.id = organization_id AND left_out.currency IN ('', balance.currency))
    ORDER BY organization_id, balance.currency
    ON CONFLICT (organization_id, currency, month) DO NOTHING
    RETURNING organization_id, currency, outbox_event_id
)
{events};
