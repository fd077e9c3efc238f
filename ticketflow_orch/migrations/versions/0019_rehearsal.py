"""Whether a database is made for rehearsals, where business time may run ahead: said when it is made, or never."""

from alembic import op

revision = "0019"
down_revision = "0018"

REHEARSAL = """
ALTER TABLE installation ADD COLUMN rehearsal boolean NOT NULL DEFAULT false;

CREATE FUNCTION installation_rehearsal_fixed() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF OLD.business_timezone IS NOT NULL OR EXISTS (SELECT FROM organization) THEN
        RAISE EXCEPTION 'whether a database is for rehearsals is said when it is made'
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER installation_rehearsal_fixed BEFORE UPDATE OF rehearsal ON installation FOR EACH ROW
    WHEN (OLD.rehearsal <> NEW.rehearsal) EXECUTE FUNCTION installation_rehearsal_fixed();
"""


def upgrade() -> None:
    op.execute(REHEARSAL)
