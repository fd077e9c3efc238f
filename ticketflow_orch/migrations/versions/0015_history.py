"""History is never paid: from which month on an organization is paid, and what of a balance was settled elsewhere.

Months are plain dates here: a column of a domain would rewrite the table. A balance that was written before, or by code
that knows nothing of this, says so by `knows_history`, and stays what it was.
"""

from alembic import op

from ticketflow_orch.migrations.online import build_index, with_short_lock

revision = "0015"
down_revision = "0014"

_ORGANIZATION = """
ALTER TABLE organization
    ADD COLUMN IF NOT EXISTS payouts_from date,
    DROP CONSTRAINT IF EXISTS organization_payouts_from_check,
    ADD CONSTRAINT organization_payouts_from_check
        CHECK (isfinite(payouts_from) AND extract(day FROM payouts_from) = 1) NOT VALID
"""

_BALANCE = """
ALTER TABLE organization_balance
    ADD COLUMN IF NOT EXISTS settled_elsewhere bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS payouts_from date,
    ADD COLUMN IF NOT EXISTS knows_history boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT IF EXISTS organization_balance_due_check,
    DROP CONSTRAINT IF EXISTS organization_balance_payouts_from_check,
    ADD CONSTRAINT organization_balance_due_check
        CHECK (due = opening + net + returned - settled_elsewhere) NOT VALID,
    ADD CONSTRAINT organization_balance_payouts_from_check
        CHECK (payable = 0 OR NOT knows_history OR (payouts_from IS NOT NULL AND month >= payouts_from)) NOT VALID
"""

_VALIDATE_ORGANIZATION = "ALTER TABLE organization VALIDATE CONSTRAINT organization_payouts_from_check"
_VALIDATE_BALANCE = """
ALTER TABLE organization_balance
    VALIDATE CONSTRAINT organization_balance_due_check,
    VALIDATE CONSTRAINT organization_balance_payouts_from_check
"""

# Who changes it, this code by name or the application by its role, is kept. The application writes organizations and
# need not be allowed to write here.
_CHANGES = """
CREATE TABLE IF NOT EXISTS organization_change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organization_id bigint NOT NULL,
    name text NOT NULL,
    before text,
    after text,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by text NOT NULL,
    changed_role text NOT NULL DEFAULT session_user
);
CREATE OR REPLACE FUNCTION organization_change_kept() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO organization_change (organization_id, name, before, after, changed_by)
    VALUES (NEW.id, 'payouts_from', CAST(OLD.payouts_from AS text), CAST(NEW.payouts_from AS text),
        coalesce(nullif(current_setting('ticketflow.changed_by', true), ''), session_user));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER organization_change_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON organization_change
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('changes of organizations are kept as they were');
CREATE OR REPLACE TRIGGER organization_change_kept AFTER UPDATE OF payouts_from ON organization FOR EACH ROW
    WHEN (OLD.payouts_from IS DISTINCT FROM NEW.payouts_from) EXECUTE FUNCTION organization_change_kept();
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        with_short_lock(connection, _ORGANIZATION, table="organization")
        with_short_lock(connection, _BALANCE, table="organization_balance")
        with_short_lock(connection, _VALIDATE_ORGANIZATION, table="organization")
        with_short_lock(connection, _VALIDATE_BALANCE, table="organization_balance")
        with_short_lock(connection, _CHANGES, table="organization")
        build_index(
            connection, "organization_payouts_from_idx", "organization", ["payouts_from"],
            where="payouts_from IS NOT NULL",
        )  # fmt: skip
