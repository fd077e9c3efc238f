"""From when on people are paid is changed where that is judged, once there are books.

What another hand changes there would take back what was paid, lose what is owed, or pay what was settled elsewhere.
"""

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import with_short_lock

revision = "0021"
down_revision = "0020"

# Who has judged the change says who decided it. A month begins to be closed, and goes on being closed, before the
# change or after it: then its balances are seen here.
GUARD = """
CREATE OR REPLACE FUNCTION payouts_from_guard() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    has_books boolean;
BEGIN
    IF current_setting('ticketflow.changed_by', true) <> '' THEN
        RETURN NEW;
    END IF;
    LOCK TABLE settlement_period IN ROW EXCLUSIVE MODE;
    PERFORM month FROM settlement_period WHERE state = 'CLOSING' FOR SHARE;
    IF TG_TABLE_NAME = 'organization' THEN
        has_books := EXISTS (SELECT FROM organization_balance WHERE organization_id = NEW.id);
    ELSE
        has_books := EXISTS (SELECT FROM organization_balance);
    END IF;
    IF has_books THEN
        RAISE EXCEPTION 'there are books: `ticketflow payouts from` changes from when on people are paid, and judges it'
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
"""

TRIGGERS = """
CREATE OR REPLACE TRIGGER {table}_payouts_from_judged BEFORE UPDATE OF payouts_from ON {table} FOR EACH ROW
    WHEN (OLD.payouts_from IS DISTINCT FROM NEW.payouts_from) EXECUTE FUNCTION payouts_from_guard();
CREATE OR REPLACE TRIGGER {table}_payouts_from_seen BEFORE UPDATE OF payouts_from ON {table} FOR EACH ROW
    WHEN (OLD.payouts_from IS DISTINCT FROM NEW.payouts_from) EXECUTE FUNCTION refuse_old_snapshot()
"""

# The years of which there are months here: one organization with another would keep all from being paid.
YEARS = """
ALTER TABLE organization
    DROP CONSTRAINT IF EXISTS organization_payouts_from_check,
    ADD CONSTRAINT organization_payouts_from_check CHECK (
        payouts_from >= '1970-01-01' AND payouts_from < '9999-01-01' AND extract(day FROM payouts_from) = 1) NOT VALID
"""
VALIDATE = "ALTER TABLE organization VALIDATE CONSTRAINT organization_payouts_from_check"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        connection.execute(text(GUARD))
        connection.execute(text("REVOKE EXECUTE ON FUNCTION payouts_from_guard() FROM PUBLIC"))
        with_short_lock(connection, YEARS, table="organization")
        with_short_lock(connection, VALIDATE, table="organization")
        for table in ("organization", "installation"):
            with_short_lock(connection, TRIGGERS.format(table=table), table=table)
