"""One bad row harms no other: what jobs leave out is remembered, and instants are such that everybody can read them.

A payment that was reported as stuck is taken back when the application ends it, and may be reported again. A capture
without a ticket is an event of its own, and waits for none of its reservation's, which may never arrive. Reservations
are found by event in the order of their ids, so that reminders go through a large event in chunks.
"""

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import build_index, drop_index, refit, with_short_lock

revision = "0026"
down_revision = "0025"

BAD_ROWS = """
CREATE TABLE IF NOT EXISTS bad_row (
    job text NOT NULL,
    row_key text NOT NULL,
    name text NOT NULL,
    error text NOT NULL,
    since timestamptz NOT NULL,
    tried_at timestamptz NOT NULL,
    alerted_at timestamptz,
    PRIMARY KEY (job, row_key)
);
"""

# With the rights of the owner of the outbox: who may change a reservation need not be allowed to write there.
FUNCTIONS = """
CREATE OR REPLACE FUNCTION reservation_report_ends() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    NEW.stuck_reported_at := NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION reservation_payment_resolved() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
    VALUES ('reservation', NEW.public_ref, 'ReservationPaymentResolved',
        jsonb_build_object('ref', NEW.public_ref, 'status', NEW.status, 'payment_started_at', OLD.payment_started_at),
        'ReservationPaymentResolved:' || NEW.public_ref || ':' || to_char(
            coalesce(OLD.payment_started_at, OLD.expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        clock_timestamp())
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION reservation_payment_resolved() FROM PUBLIC;

CREATE OR REPLACE FUNCTION money_movement_late_capture() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    held reservation;
BEGIN
    SELECT * INTO held FROM reservation WHERE id = NEW.reservation_id FOR SHARE;
    IF held.status IN ('EXPIRED', 'CANCELLED') THEN
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        VALUES ('capture', NEW.external_ref, 'PaymentAfterExpiry',
            jsonb_build_object('reservation', held.public_ref, 'movement', NEW.external_ref, 'status', held.status,
                'amount', NEW.amount, 'currency', NEW.currency),
            'PaymentAfterExpiry:' || NEW.external_ref, NEW.occurred_at)
        ON CONFLICT (dedupe_key) DO NOTHING;
        INSERT INTO late_capture (movement_id) VALUES (NEW.id);
    END IF;
    RETURN NULL;
END $$;
"""

TRIGGERS = """
CREATE OR REPLACE TRIGGER reservation_report_ends BEFORE UPDATE OF status, payment_started_at ON reservation
    FOR EACH ROW WHEN (OLD.stuck_reported_at IS NOT NULL AND (NEW.status <> 'ACTIVE'
        OR NEW.payment_started_at IS DISTINCT FROM OLD.payment_started_at))
    EXECUTE FUNCTION reservation_report_ends();
CREATE OR REPLACE TRIGGER reservation_payment_resolved
    AFTER UPDATE OF status, payment_started_at, stuck_reported_at ON reservation
    FOR EACH ROW WHEN (OLD.stuck_reported_at IS NOT NULL AND NEW.stuck_reported_at IS NULL)
    EXECUTE FUNCTION reservation_payment_resolved();
"""

# The years that Python has. An event ends after it starts, also where both have to be moved.
FIRST, LAST = "0001-01-01", "9999-12-30"
INSTANTS = {
    "event": ("starts_at", "ends_at", "closed_at"),
    "reservation": (
        "created_at", "expires_at", "payment_started_at", "confirmed_at", "expired_at", "stuck_reported_at",
        "cancelled_at",
    ),
}  # fmt: skip
EDGES = {"ends_at": (f"{FIRST} 00:00:01Z", "9999-12-31 23:59:59Z")}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        for script in (BAD_ROWS, FUNCTIONS):
            connection.execute(text(script))
        with_short_lock(connection, TRIGGERS, table="reservation")
        for table, columns in INSTANTS.items():
            edges = {name: EDGES.get(name, (f"{FIRST}Z", f"{LAST}Z")) for name in columns}
            refit(
                connection, f"{table}_instants_check", table,
                {name: f"{name} >= '{FIRST}Z' AND {name} < '10000-01-01Z'" for name in columns}, edges,
            )  # fmt: skip
        days = ("joined_on", "left_on")
        refit(
            connection, "organization_days_check", "organization",
            {name: f"{name} >= '{FIRST}' AND {name} < '10000-01-01'" for name in days},
            dict.fromkeys(days, (FIRST, LAST)),
        )  # fmt: skip
        build_index(
            connection, "reservation_to_remind_idx", "reservation", ("event_id", "id"), where="status = 'CONFIRMED'"
        )
        drop_index(connection, "reservation_confirmed_idx")
