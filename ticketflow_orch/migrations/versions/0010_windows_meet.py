"""The windows of neighbouring months meet: no instant of a zone lies in two months or in none."""

from alembic import op

revision = "0010"
down_revision = "0009"

GUARD = """
CREATE FUNCTION settlement_window_guard() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    apart record;
BEGIN
    SELECT fresh.timezone, fresh.month INTO apart
    FROM fresh JOIN settlement_window AS other USING (timezone)
    WHERE (other.month = fresh.month - interval '1 month' AND other.ends_at <> fresh.starts_at)
        OR (other.month = fresh.month + interval '1 month' AND other.starts_at <> fresh.ends_at)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the window of % in % does not meet that of its neighbour', apart.month, apart.timezone
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER settlement_window_meets AFTER INSERT ON settlement_window REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION settlement_window_guard();
"""


def upgrade() -> None:
    op.execute(GUARD)
