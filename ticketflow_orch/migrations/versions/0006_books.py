"""Books: balances and closed months, payouts, opening balances, who was mailed a statement."""

from alembic import op

revision = "0006"
down_revision = "0005"

# CLOSING freezes a month while its balances are written, chunk by chunk; it goes back to SETTLED when the month turns
# out not to be fit for closing. The role is what the database knows of who closed, beside the name that was declared.
PERIODS = """
DROP TRIGGER settlement_period_transition ON settlement_period;
DROP TRIGGER settlement_period_kept ON settlement_period;
ALTER TABLE settlement_period
    DROP CONSTRAINT settlement_period_state_check,
    ADD CONSTRAINT settlement_period_state_check CHECK (state IN ('OPEN', 'SETTLED', 'CLOSING', 'CLOSED')),
    ADD COLUMN closed_role text,
    ADD COLUMN paid_at timestamptz,
    ADD COLUMN stated_at timestamptz;
UPDATE settlement_period SET closed_role = current_user WHERE state = 'CLOSED';
ALTER TABLE settlement_period
    ADD CHECK ((closed_role IS NOT NULL) = (state = 'CLOSED')),
    ADD CHECK (paid_at IS NULL OR state = 'CLOSED'),
    ADD CHECK (stated_at IS NULL OR state = 'CLOSED');
CREATE TRIGGER settlement_period_transition BEFORE UPDATE OF state ON settlement_period FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('OPEN', 'SETTLED'), ('SETTLED', 'CLOSING'), ('CLOSING', 'SETTLED'), ('CLOSING', 'CLOSED')))
    EXECUTE FUNCTION refuse_transition('state');
CREATE TRIGGER settlement_period_kept BEFORE DELETE ON settlement_period FOR EACH ROW WHEN (OLD.state <> 'OPEN')
    EXECUTE FUNCTION refuse('a settlement period that is settled or closed stays so');

CREATE OR REPLACE FUNCTION ledger_entry_period_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused record;
BEGIN
    PERFORM FROM settlement_period WHERE month IN (SELECT month FROM posted) ORDER BY month FOR SHARE;
    SELECT posted.month, state INTO refused FROM posted LEFT JOIN settlement_period USING (month)
    WHERE state IS NULL OR state IN ('CLOSING', 'CLOSED') LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'month % is %', to_char(refused.month, 'YYYY-MM'), CASE
            WHEN refused.state IS NULL THEN 'not begun: it needs a settlement_period before anything is posted in it'
            ELSE 'closed: post the adjustment in the first month that is not'
        END USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
END $$;

ALTER TABLE parked_organization ADD COLUMN parked_by text, ADD COLUMN resolved_by text;
"""

# `previous_month`: the balance before; a balance covers what was posted after that month, up to its own. It skips the
# months in which the organization was parked.
BALANCES = """
CREATE TABLE opening_balance (
    organization_id bigint NOT NULL REFERENCES organization,
    currency char(3) NOT NULL REFERENCES currency,
    amount bigint NOT NULL CHECK (amount <> 0),
    import_id bigint REFERENCES data_import,
    PRIMARY KEY (organization_id, currency)
);

CREATE TABLE organization_balance (
    organization_id bigint NOT NULL,
    currency char(3) NOT NULL,
    month month_start NOT NULL,
    previous_month month_start CHECK (previous_month < month),
    opening bigint NOT NULL,
    net bigint NOT NULL,
    returned bigint NOT NULL CHECK (returned >= 0),
    due bigint NOT NULL,
    payable bigint NOT NULL CHECK (payable >= 0 AND payable IN (0, due)),
    closing bigint NOT NULL,
    CONSTRAINT organization_balance_pkey PRIMARY KEY (organization_id, currency, month),
    CONSTRAINT organization_balance_due_check CHECK (due = opening + net + returned),
    CONSTRAINT organization_balance_closing_check CHECK (closing = due - payable)
);
CREATE INDEX organization_balance_month_idx ON organization_balance USING brin (month)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE TRIGGER organization_balance_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON organization_balance
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('organization_balance is append-only: a closed month never changes');

-- The share lock makes a balance and the end of its month's closing wait for each other.
CREATE FUNCTION organization_balance_period_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused record;
BEGIN
    PERFORM FROM settlement_period WHERE month IN (SELECT month FROM written) ORDER BY month FOR SHARE;
    SELECT written.month INTO refused FROM written LEFT JOIN settlement_period USING (month)
    WHERE state IS DISTINCT FROM 'CLOSING' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'month % is not being closed: balances are written while it is',
            to_char(refused.month, 'YYYY-MM')
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER organization_balance_period_closing AFTER INSERT ON organization_balance
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION organization_balance_period_guard();
"""

# `public_id` is our reference at the provider and the aggregate in the outbox. `returned_month`: in whose balance the
# money of a rejected or returned payout came back.
PAYOUTS = """
CREATE TABLE payout (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    organization_id bigint NOT NULL REFERENCES organization,
    currency char(3) NOT NULL REFERENCES currency,
    month month_start NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    state text NOT NULL CHECK (state IN ('HELD', 'REQUESTED', 'CONFIRMED', 'REJECTED', 'RETURNED', 'IN_DOUBT')),
    reason text,
    provider_ref text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_attempt_at timestamptz,
    answered_at timestamptz CHECK (answered_at IS NOT NULL OR state NOT IN ('CONFIRMED', 'REJECTED', 'RETURNED')),
    returned_month month_start CHECK (returned_month IS NULL OR state IN ('REJECTED', 'RETURNED')),
    decided_by text,
    run_id text,
    UNIQUE (organization_id, currency, month)
);
CREATE INDEX payout_to_return_idx ON payout (organization_id, currency)
    WHERE state IN ('REJECTED', 'RETURNED') AND returned_month IS NULL;
CREATE INDEX payout_waiting_idx ON payout (month, state) WHERE state IN ('HELD', 'REQUESTED', 'IN_DOUBT');

CREATE TRIGGER payout_transition BEFORE UPDATE OF state ON payout FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('HELD', 'REQUESTED'), ('HELD', 'REJECTED'), ('REQUESTED', 'HELD'), ('REQUESTED', 'CONFIRMED'),
        ('REQUESTED', 'REJECTED'), ('REQUESTED', 'IN_DOUBT'), ('IN_DOUBT', 'CONFIRMED'), ('IN_DOUBT', 'REJECTED'),
        ('IN_DOUBT', 'REQUESTED'), ('CONFIRMED', 'RETURNED')))
    EXECUTE FUNCTION refuse_transition('state');
CREATE TRIGGER payout_frozen BEFORE UPDATE ON payout FOR EACH ROW
    WHEN ((OLD.public_id, OLD.organization_id, OLD.currency, OLD.month, OLD.amount)
        IS DISTINCT FROM (NEW.public_id, NEW.organization_id, NEW.currency, NEW.month, NEW.amount)
        OR (OLD.returned_month IS NOT NULL AND OLD.returned_month IS DISTINCT FROM NEW.returned_month))
    EXECUTE FUNCTION refuse('a payout never changes whose it is, its month or its amount, and returns once');
CREATE TRIGGER payout_kept BEFORE DELETE OR TRUNCATE ON payout FOR EACH STATEMENT
    EXECUTE FUNCTION refuse('payouts are never deleted');

-- Outlives the event in the outbox: it is what makes sure that a statement is mailed once.
CREATE TABLE statement_mail (
    organization_id bigint NOT NULL REFERENCES organization,
    currency char(3) NOT NULL REFERENCES currency,
    month month_start NOT NULL,
    outbox_event_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, currency, month)
);
"""


def upgrade() -> None:
    for script in (PERIODS, BALANCES, PAYOUTS):
        op.execute(script)
