"""Cutoffs by the order of recording, brought to a live database whose passes were cut off by its clock.

Every step may be repeated. Movements are only read; what the passes of old had read is told by their instants, once,
here. Where the two orders disagree (a clock stepped back, an import drew its ids long before it inserted) a movement
counts as unread: the next pass looks at its organization again and posts the difference, which is nothing if it was
read after all.
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
    ADD COLUMN IF NOT EXISTS closed_through month_start,
    ADD COLUMN IF NOT EXISTS is_full boolean NOT NULL DEFAULT false;
ALTER TABLE settlement_period ADD COLUMN IF NOT EXISTS read_to bigint;
ALTER TABLE settlement_chunk ADD COLUMN IF NOT EXISTS organizations bigint[];
CREATE TABLE IF NOT EXISTS organization_left_out (
    month month_start NOT NULL REFERENCES settlement_period,
    organization_id bigint NOT NULL REFERENCES organization,
    PRIMARY KEY (month, organization_id)
)
"""

# What a pass had read lies below the first movement that it had not. One that is still running goes on from there.
_CUTOFFS = """
UPDATE settlement_pass SET cutoff_id = coalesce(
    (SELECT min(id) FROM money_movement WHERE recorded_at >= settlement_pass.cutoff),
    (SELECT last_value + CAST(is_called AS integer) FROM money_movement_id_seq))
"""

# A pass that began when the month before it was closed has read what came late for all months before.
_CLOSED_THROUGH = """
UPDATE settlement_pass SET closed_through = CAST(settlement_pass.month - interval '1 month' AS date)
FROM settlement_period AS before
WHERE before.month = settlement_pass.month - interval '1 month' AND before.closed_at <= settlement_pass.cutoff
"""

_READ_TO = """
UPDATE settlement_period SET read_to = (
    SELECT max(cutoff_id) FROM settlement_pass AS done
    WHERE done.state = 'DONE' AND (done.month = settlement_period.month
        OR (settlement_period.state = 'CLOSED' AND done.closed_through >= settlement_period.month)))
"""

_LEFT_OUT = """
INSERT INTO organization_left_out (month, organization_id)
SELECT DISTINCT period.month, parked.organization_id
FROM settlement_period AS period
JOIN parked_organization AS parked ON parked.month <= period.month
    AND since <= closed_at AND (resolved_at IS NULL OR resolved_at > closed_at)
WHERE period.state = 'CLOSED' AND NOT EXISTS (
    SELECT FROM organization_balance AS balance
    WHERE balance.organization_id = parked.organization_id AND balance.month = period.month)
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
ALTER TABLE settlement_pass RENAME COLUMN cutoff TO cutoff_at;
ALTER TABLE settlement_pass RENAME COLUMN cutoff_id TO cutoff;
ALTER TABLE settlement_pass
    ALTER COLUMN cutoff SET NOT NULL,
    ALTER COLUMN cutoff_at SET DEFAULT clock_timestamp();
ALTER TABLE settlement_chunk
    ADD CONSTRAINT settlement_chunk_listed_check CHECK (high_id IS NOT NULL OR organizations IS NULL);
CREATE TRIGGER settlement_pass_frozen BEFORE UPDATE ON settlement_pass FOR EACH ROW
    WHEN ((OLD.month, OLD.pass, OLD.cutoff, OLD.cutoff_at, OLD.is_full)
        IS DISTINCT FROM (NEW.month, NEW.pass, NEW.cutoff, NEW.cutoff_at, NEW.is_full))
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
    """Add what cutoffs by id need, beside what passes by clock use; old and new writers of movements both work."""
    with_short_lock(connection, _ADD_COLUMNS, table="settlement_pass")
    build_index(
        connection, _NEW_SETTLEMENT_INDEX, "money_movement", ("organization_id", "occurred_at"), include=_INCLUDED
    )
    build_index(connection, "money_movement_order_idx", "money_movement", ("id", "occurred_at"), method="brin")


def contract(connection: Connection) -> None:
    """Fill in what every pass had read, then let ids decide; passes of old code end with an error from here on."""
    if not _is_switched(connection):
        # One transaction: no pass begins between the filling in and the switch.
        fill = ";".join((_CUTOFFS, _CLOSED_THROUGH, _READ_TO, _LEFT_OUT))
        with_short_lock(
            connection,
            f"LOCK TABLE settlement_period, settlement_pass IN ACCESS EXCLUSIVE MODE;{fill};{_SWITCH_CUTOFF}",
            table="settlement_pass",
        )
    with_short_lock(connection, _DRAWN_IDS, table="money_movement")
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
