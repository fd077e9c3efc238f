"""Ids that survive a restore: events and payouts are named after what they are about, not by chance.

A database that is restored, or a standby that lost the last seconds, asks its provider and its receivers again, and
under the same ids: so they recognise what they have. An id is a UUID of version 8 made of SHA-256 over the
installation's id, the table's name and a key of the business, as RFC 9562 shows it (appendix B.2). Version 5 would need
SHA-1, which Postgres has only in an extension; version 3 is MD5, for which anybody finds two keys with one id. No key
holds a number of a sequence: after a restore the same number is another row.

Ids that grow with time (0007) kept the newest side by side in their index. These do not: a chunk touches as many of its
pages as it has rows. Keys are as scattered in the index beside it, and both are as long as the retention lets them be.

Rows that are there keep their ids and keys. An id that is left out becomes the derived one; another one is refused, a
statement at a time. A run of the version before that names ids itself fails once, and the next run does its work.
"""

from alembic import op

from ticketflow_orch.migrations import online

revision = "0016"
down_revision = "0015"

# Written so that they are bound to what they call when they are created, whatever a session's search path is then; a
# SET would keep the planner from expanding the first into the statements that call it. The bits are those of version
# and variant.
FUNCTIONS = """
CREATE OR REPLACE FUNCTION derived_id(installation uuid, kind text, key text) RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CAST(encode(
    set_bit(set_bit(set_bit(set_bit(set_bit(set_bit(
        substring(sha256(uuid_send(installation) || convert_to(kind || ':' || key, 'UTF8')) FROM 1 FOR 16),
        55, 1), 54, 0), 53, 0), 52, 0), 71, 1), 70, 0),
    'hex') AS uuid);

CREATE OR REPLACE FUNCTION outbox_event_named() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    NEW.event_id := derived_id((SELECT id FROM installation), 'outbox_event', NEW.dedupe_key);
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION outbox_event_names_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    refused text;
BEGIN
    SELECT dedupe_key INTO refused FROM written
    WHERE event_id <> derived_id((SELECT id FROM installation), 'outbox_event', dedupe_key) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the id of event % is not the one that its key makes: leave it out', refused
            USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION payout_named() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    SELECT derived_id(installation.id, 'payout',
        external_ref || ':' || NEW.currency || ':' || to_char(NEW.month, 'YYYY-MM')) INTO NEW.public_id
    FROM organization, installation WHERE organization.id = NEW.organization_id;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION payout_names_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    refused text;
BEGIN
    SELECT external_ref INTO refused
    FROM written JOIN organization ON organization.id = organization_id
    WHERE public_id <> derived_id((SELECT id FROM installation), 'payout',
        external_ref || ':' || written.currency || ':' || to_char(month, 'YYYY-MM'))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the reference of a payout to % is not the one that its key makes: leave it out', refused
            USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
"""

EVENTS = """
ALTER TABLE outbox_event ALTER COLUMN event_id DROP DEFAULT;
CREATE OR REPLACE TRIGGER outbox_event_named BEFORE INSERT ON outbox_event FOR EACH ROW
    WHEN (NEW.event_id IS NULL) EXECUTE FUNCTION outbox_event_named();
CREATE OR REPLACE TRIGGER outbox_event_derived AFTER INSERT ON outbox_event
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION outbox_event_names_guard();
"""

PAYOUTS = """
ALTER TABLE payout ALTER COLUMN public_id DROP DEFAULT;
CREATE OR REPLACE TRIGGER payout_named BEFORE INSERT ON payout FOR EACH ROW
    WHEN (NEW.public_id IS NULL) EXECUTE FUNCTION payout_named();
CREATE OR REPLACE TRIGGER payout_derived AFTER INSERT ON payout
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION payout_names_guard();
"""

# What was told of rows by their numbers is told of them by their names from now on, and not twice.
ALERTS = """
WITH told AS MATERIALIZED (
    SELECT split_part(key, ' ', 1) AS job, CAST(split_part(key, ' ', 2) AS bigint) AS id, alerted_at
    FROM alert
    WHERE kind = 'RowLeftOut' AND key ~ '^(close_events|expire_reservations|send_reminders) [0-9]{1,18}$'
), named AS (
    SELECT job, external_ref AS name, alerted_at FROM told JOIN event USING (id) WHERE job <> 'expire_reservations'
    UNION ALL
    SELECT job, public_ref, alerted_at FROM told JOIN reservation USING (id) WHERE job = 'expire_reservations'
)
INSERT INTO alert (kind, key, alerted_at)
SELECT 'RowLeftOut', job || ' ' || name, alerted_at FROM named
ON CONFLICT DO NOTHING;
"""

# Payouts that are confirmed under one reference: health looks at those that were told of.
SHARED = """
INSERT INTO alert (kind, key)
SELECT 'PayoutReferenceShared', provider_ref FROM payout
WHERE state = 'CONFIRMED' AND provider_ref IS NOT NULL
GROUP BY provider_ref HAVING count(*) > 1
ON CONFLICT DO NOTHING;
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        op.execute(FUNCTIONS)
        op.execute(ALERTS)
        online.with_short_lock(connection, EVENTS, table="outbox_event")
        online.with_short_lock(connection, PAYOUTS, table="payout")
        online.build_index(
            connection, "payout_provider_ref_idx", "payout", ["provider_ref"], where="state = 'CONFIRMED'"
        )
        op.execute(SHARED)
        op.execute("DROP FUNCTION IF EXISTS new_event_id()")
