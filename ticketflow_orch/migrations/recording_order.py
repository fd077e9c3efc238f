"""Cutoffs by the order of recording, brought to a live database whose passes were cut off by its clock.

Every step may be repeated. Movements are only read. What a pass of old had read is what its clock says of each
movement, which its row keeps saying (`recorded_before`), for statements of closed months are about just that. What
counts as read from here on is less: ids and clocks may disagree (a clock stepped back, an import drew its ids long
before it inserted), so the last day before a cutoff is unread. The next pass looks at those organizations again and
posts the difference, which is nothing if they were read after all.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from ticketflow_orch.migrations.online import build_index, drop_index, with_short_lock

SETTLEMENT_INDEX = "money_movement_settlement_idx"
_NEW_SETTLEMENT_INDEX = "money_movement_by_organization_idx"
_INCLUDED = ("currency", "kind", "amount", "commission_rate_bps", "commission_tax_bps", "id")

_ADD_COLUMNS = """
ALTER TABLE settlement_pass
    ADD COLUMN IF NOT EXISTS cutoff_id bigint,
    ADD COLUMN IF NOT EXISTS unread_from bigint,
    ADD COLUMN IF NOT EXISTS recorded_before timestamptz,
    ADD COLUMN IF NOT EXISTS closed_through month_start,
    ADD COLUMN IF NOT EXISTS is_full boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS given_up_because text;
ALTER TABLE settlement_period ADD COLUMN IF NOT EXISTS read_to bigint;
ALTER TABLE settlement_chunk ADD COLUMN IF NOT EXISTS organizations bigint[];
CREATE TABLE IF NOT EXISTS organization_left_out (
    month month_start NOT NULL REFERENCES settlement_period,
    organization_id bigint NOT NULL REFERENCES organization,
    PRIMARY KEY (month, organization_id)
)
"""

# All that was recorded before a pass's instant lies below `cutoff_id`; what was recorded after the day before it, and
# what will be, lies from `unread_from` on. One reading of the movements tells it for all passes, however many they are.
_CUTOFFS = """
WITH asked AS MATERIALIZED (
    SELECT month, pass, cutoff, least(cutoff, clock_timestamp()) - interval '1 day' AS certain
    FROM settlement_pass WHERE cutoff_id IS NULL AND state <> 'RUNNING'
), edge AS MATERIALIZED (
    SELECT array_agg(DISTINCT at ORDER BY at) AS edges
    FROM asked CROSS JOIN LATERAL (VALUES (cutoff), (certain)) AS instant (at)
), span AS MATERIALIZED (
    SELECT width_bucket(recorded_at, edges) AS position, min(id) AS lowest, max(id) AS highest
    FROM money_movement CROSS JOIN edge WHERE edges IS NOT NULL GROUP BY position
)
UPDATE settlement_pass SET
    cutoff_id = 1 + coalesce(
        (SELECT max(highest) FROM span WHERE position < array_position(edges, asked.cutoff)), 0),
    unread_from = least(
        (SELECT min(lowest) FROM span WHERE position >= array_position(edges, certain)),
        1 + coalesce((SELECT max(highest) FROM span WHERE position < array_position(edges, certain)), 0))
FROM asked CROSS JOIN edge
WHERE (settlement_pass.month, settlement_pass.pass) = (asked.month, asked.pass)
"""

# Workers of old code go by the clock; nobody could say what a pass had read that they began and others ended.
_GIVE_UP_RUNNING = """
DELETE FROM settlement_chunk USING settlement_pass AS running
WHERE (settlement_chunk.month, settlement_chunk.pass) = (running.month, running.pass)
    AND running.state = 'RUNNING' AND settlement_chunk.state = 'PLANNED';
UPDATE settlement_pass SET state = 'GIVEN_UP', finished_at = clock_timestamp(),
    planned_at = coalesce(planned_at, clock_timestamp())
WHERE state = 'RUNNING'
"""

# As `_CUTOFFS`, for the few passes that began meanwhile: from the newest movement back, and by the index on instants.
_LATEST_CUTOFFS = """
UPDATE settlement_pass SET
    cutoff_id = 1 + coalesce((
        SELECT id FROM money_movement WHERE recorded_at < settlement_pass.cutoff ORDER BY id DESC LIMIT 1), 0),
    unread_from = least(
        (SELECT min(id + 0) FROM money_movement WHERE recorded_at >= certain),
        1 + coalesce((SELECT id FROM money_movement WHERE recorded_at < certain ORDER BY id DESC LIMIT 1), 0))
FROM (
    SELECT month, pass, least(cutoff, clock_timestamp()) - interval '1 day' AS certain FROM settlement_pass
) AS asked
WHERE (settlement_pass.month, settlement_pass.pass) = (asked.month, asked.pass) AND cutoff_id IS NULL
"""

# A pass that began when the month before it was closed has read what came late for all months before.
_CLOSED_THROUGH = """
UPDATE settlement_pass SET closed_through = CAST(settlement_pass.month - interval '1 month' AS date)
FROM settlement_period AS before
WHERE before.month = settlement_pass.month - interval '1 month' AND before.closed_at <= settlement_pass.cutoff
"""

# Of the last pass in the order of numbers, which no clock can be wrong about. A month that is not closed has read
# nothing: its next pass looks at everybody, as every pass of old did.
_READ_TO = """
UPDATE settlement_period SET read_to = CASE WHEN state = 'SETTLED' THEN 0 ELSE coalesce((
    SELECT unread_from FROM settlement_pass AS done
    WHERE done.state = 'DONE' AND (done.month = settlement_period.month
        OR (settlement_period.state = 'CLOSED' AND done.closed_through >= settlement_period.month))
    ORDER BY done.month DESC, done.pass DESC LIMIT 1), 0) END
WHERE state <> 'OPEN'
"""

# Who was parked when a month was closed has no balance of it. Where clocks do not say so, that there is none for what
# was posted or carried does.
_LEFT_OUT = """
INSERT INTO organization_left_out (month, organization_id)
SELECT DISTINCT period.month, parked.organization_id
FROM settlement_period AS period
JOIN parked_organization AS parked ON parked.month <= period.month
WHERE period.state = 'CLOSED' AND NOT EXISTS (
        SELECT FROM organization_balance AS balance
        WHERE balance.organization_id = parked.organization_id AND balance.month = period.month)
    AND ((since <= closed_at AND (resolved_at IS NULL OR resolved_at > closed_at))
        OR EXISTS (
            SELECT FROM ledger_entry AS entry
            WHERE entry.organization_id = parked.organization_id AND entry.month = period.month)
        OR EXISTS (
            SELECT FROM organization_balance AS carried
            WHERE carried.organization_id = parked.organization_id AND closing <> 0 AND carried.month < period.month
                AND NOT EXISTS (
                    SELECT FROM organization_balance AS later
                    WHERE later.organization_id = carried.organization_id AND later.currency = carried.currency
                        AND later.month > carried.month AND later.month < period.month)))
ON CONFLICT DO NOTHING
"""

# ALWAYS, so that nobody names an id that lies behind a cutoff by mistake; one value at a time, so that no session keeps
# values back for later.
_DRAWN_IDS = """
ALTER TABLE money_movement ALTER COLUMN id
    SET GENERATED ALWAYS SET CACHE 1 SET INCREMENT 1 SET NO CYCLE
"""

_SWITCH_CUTOFF = """
DROP TRIGGER settlement_pass_frozen ON settlement_pass;
UPDATE settlement_pass SET recorded_before = cutoff;
ALTER TABLE settlement_pass RENAME COLUMN cutoff TO cutoff_at;
ALTER TABLE settlement_pass RENAME COLUMN cutoff_id TO cutoff;
ALTER TABLE settlement_pass
    DROP COLUMN unread_from,
    ALTER COLUMN cutoff SET NOT NULL,
    ALTER COLUMN cutoff_at SET DEFAULT clock_timestamp();
ALTER TABLE settlement_chunk
    ADD CONSTRAINT settlement_chunk_listed_check CHECK (high_id IS NOT NULL OR organizations IS NULL);
CREATE TRIGGER settlement_pass_frozen BEFORE UPDATE ON settlement_pass FOR EACH ROW
    WHEN ((OLD.month, OLD.pass, OLD.cutoff, OLD.cutoff_at, OLD.recorded_before, OLD.is_full)
        IS DISTINCT FROM (NEW.month, NEW.pass, NEW.cutoff, NEW.cutoff_at, NEW.recorded_before, NEW.is_full))
    EXECUTE FUNCTION refuse('a settlement pass never changes its month, number or cutoff');
CREATE TRIGGER settlement_period_read_on BEFORE UPDATE OF read_to ON settlement_period FOR EACH ROW
    WHEN (OLD.read_to > NEW.read_to OR (OLD.read_to IS NOT NULL AND NEW.read_to IS NULL))
    EXECUTE FUNCTION refuse('what a settlement has read stays read');
"""

# A month before the first closed one has no period of its own: the passes that look at that one look at it as well.
_GUARDS = """
CREATE OR REPLACE FUNCTION settlement_read_to(about date) RETURNS bigint LANGUAGE sql STABLE
SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT coalesce(
        (SELECT read_to FROM settlement_period WHERE month = about),
        (SELECT read_to FROM settlement_period AS first
            WHERE state = 'CLOSED' AND about < month ORDER BY month LIMIT 1), 0)
$$;

-- Whether a settlement has read a movement about `about`, or may have: its months are read to there, or some pass has
-- done the organization since, whatever became of the pass.
CREATE OR REPLACE FUNCTION settlement_has_read(movement bigint, organization bigint, about date) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT about IS NOT NULL AND (movement < settlement_read_to(about) OR EXISTS (
        SELECT FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
        WHERE chunk.origin_month = about AND cutoff > movement AND chunk.state <> 'PLANNED'
            AND organization BETWEEN low_id AND coalesce(high_id, organization)))
$$;

CREATE OR REPLACE FUNCTION money_movement_delete_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM removed
        JOIN organization ON organization.id = removed.organization_id
        LEFT JOIN settlement_window AS cut ON cut.timezone = organization.timezone
            AND removed.occurred_at >= cut.starts_at AND removed.occurred_at < cut.ends_at
        WHERE removed.import_id IS NULL OR settlement_has_read(removed.id, removed.organization_id, cut.month)
    ) THEN
        RAISE EXCEPTION 'money_movement is append-only: only imported movements that no settlement has read may go'
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'money_movement';
    END IF;
    RETURN NULL;
END $$;

-- The ledger is found by month first, so an organization's entries are looked for month by month.
CREATE OR REPLACE FUNCTION organization_delete_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM removed CROSS JOIN settlement_period AS period
        JOIN ledger_entry ON ledger_entry.month = period.month AND ledger_entry.organization_id = removed.id
    ) THEN
        RAISE EXCEPTION 'an organization with ledger entries is never deleted'
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

-- A zone that does not exist may be corrected although there are movements: no month was ever cut by it.
CREATE OR REPLACE FUNCTION organization_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM FROM organization WHERE id = OLD.id FOR UPDATE;
    IF EXISTS (SELECT FROM money_movement WHERE organization_id = OLD.id) AND (
        OLD.currency <> NEW.currency
        OR EXISTS (SELECT FROM settlement_window WHERE timezone = OLD.timezone)
        OR EXISTS (SELECT FROM pg_timezone_names WHERE name = OLD.timezone)
    ) THEN
        RAISE EXCEPTION 'organization % has movements: its time zone and currency cannot change', OLD.external_ref
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
"""


def expand(connection: Connection) -> None:
    """Add what cutoffs by id need, beside what passes by clock use; old and new writers of movements both work.

    What the passes so far had read is told here, because that takes as long as there are movements.
    """
    if not _is_switched(connection):
        with_short_lock(connection, _ADD_COLUMNS, table="settlement_pass")
        connection.exec_driver_sql(_CUTOFFS)
    build_index(
        connection, _NEW_SETTLEMENT_INDEX, "money_movement", ("organization_id", "occurred_at"), include=_INCLUDED
    )
    build_index(connection, "money_movement_order_idx", "money_movement", ("id", "occurred_at"), method="brin")


def contract(connection: Connection) -> None:
    """Fill in what every pass had read, then let ids decide; passes of old code end with an error from here on."""
    # Before any pass is cut off by an id: nobody may come with one that was drawn earlier.
    with_short_lock(connection, _DRAWN_IDS, table="money_movement")
    if not _is_switched(connection):
        # One transaction: no pass begins, and none goes on, between the filling in and the switch.
        lock = "LOCK TABLE settlement_chunk, settlement_pass, settlement_period, parked_organization"
        fill = ";".join((_GIVE_UP_RUNNING, _LATEST_CUTOFFS, _CLOSED_THROUGH, _READ_TO, _LEFT_OUT))
        with_short_lock(connection, f"{lock} IN ACCESS EXCLUSIVE MODE;{fill};{_SWITCH_CUTOFF}", table="settlement_pass")
    connection.execute(text(_GUARDS))
    drop_index(connection, "money_movement_instants_idx")
    if _has_index(connection, _NEW_SETTLEMENT_INDEX):
        drop_index(connection, SETTLEMENT_INDEX)
        connection.exec_driver_sql(f"ALTER INDEX {_NEW_SETTLEMENT_INDEX} RENAME TO {SETTLEMENT_INDEX}")


def _is_switched(connection: Connection) -> bool:
    return bool(
        connection.exec_driver_sql(
            "SELECT count(*) FROM information_schema.columns"
            " WHERE table_name = 'settlement_pass' AND column_name = 'cutoff_at'"
        ).scalar_one()
    )


def _has_index(connection: Connection, name: str) -> bool:
    return bool(connection.exec_driver_sql(f"SELECT to_regclass('{name}') IS NOT NULL").scalar_one())
