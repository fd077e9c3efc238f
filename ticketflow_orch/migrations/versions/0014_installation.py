"""The installation: its identity, and what decides about money, with who changed it and when.

The id is made with the database and travels with a dump: what is derived from it is the same in a restored copy. The
columns that decide are empty until `ticketflow migrate` takes them over from the environment, once.
"""

from alembic import op

revision = "0014"
down_revision = "0013"

INSTALLATION = """
CREATE TABLE installation (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    business_timezone text,
    first_month month_start,
    payouts_from month_start,
    mail_from timestamptz,
    auto_close boolean,
    routes_digest text,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by text NOT NULL,
    CHECK ((first_month IS NULL) = (business_timezone IS NULL)),
    CHECK ((auto_close IS NULL) = (business_timezone IS NULL))
);
CREATE TABLE installation_change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    before text,
    after text,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    changed_role text NOT NULL DEFAULT current_user
);

-- By whatever role, a change is kept with its instant by the database's clock.
CREATE FUNCTION installation_change_kept() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO installation_change (name, before, after, changed_at, changed_by, changed_role)
    SELECT key, before.value, after.value, NEW.changed_at, NEW.changed_by, session_user
    FROM jsonb_each_text(to_jsonb(OLD)) AS before JOIN jsonb_each_text(to_jsonb(NEW)) AS after USING (key)
    WHERE before.value IS DISTINCT FROM after.value AND key NOT IN ('changed_at', 'changed_by');
    RETURN NULL;
END $$;
CREATE FUNCTION installation_stamp() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    NEW.changed_at := clock_timestamp();
    RETURN NEW;
END $$;
CREATE TRIGGER installation_stamped BEFORE UPDATE ON installation FOR EACH ROW
    EXECUTE FUNCTION installation_stamp();
CREATE TRIGGER installation_kept AFTER UPDATE ON installation FOR EACH ROW
    EXECUTE FUNCTION installation_change_kept();
CREATE TRIGGER installation_fixed BEFORE UPDATE OF id ON installation FOR EACH ROW WHEN (OLD.id <> NEW.id)
    EXECUTE FUNCTION refuse('an installation never changes its id: payments and events are named by it');
CREATE TRIGGER installation_stays BEFORE DELETE OR TRUNCATE ON installation FOR EACH STATEMENT
    EXECUTE FUNCTION refuse('the row of the installation is never deleted');
CREATE TRIGGER installation_change_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON installation_change
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('changes of the installation are kept as they were');

INSERT INTO installation (changed_by) VALUES (current_user);
"""


def upgrade() -> None:
    op.execute(INSTALLATION)
