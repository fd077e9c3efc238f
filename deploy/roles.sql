-- The role that runs carry on a server of your own: what the code needs and no more. Run it as the owner of the schema,
-- after `ticketflow migrate`, and again after each migration:
--   psql "$OWNER_URL" -1 -v ON_ERROR_STOP=1 -f deploy/roles.sql
-- Then: GRANT ticketflow_run TO a login role, and name that one in TICKETFLOW_DATABASE_URL. Migrations and imports are
-- for the owner. `ticketflow doctor` and `ticketflow audit` name what the role lacks, or may do beyond this. One
-- transaction (-1), so that runs never find the role without its grants.

DO $$ BEGIN
    CREATE ROLE ticketflow_run NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- A temporary table hides one of the same name from statements that do not say whose they mean; an import, which the
-- owner runs, needs them. Only the database's owner can take this from everybody.
DO $$ BEGIN
    EXECUTE 'REVOKE TEMPORARY ON DATABASE ' || quote_ident(current_database()) || ' FROM PUBLIC, ticketflow_run';
    EXECUTE 'GRANT TEMPORARY ON DATABASE ' || quote_ident(current_database()) || ' TO ' || quote_ident(current_user);
END $$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC, ticketflow_run;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM ticketflow_run;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM ticketflow_run;
GRANT USAGE ON SCHEMA public TO ticketflow_run;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO ticketflow_run;

-- Money is only ever added to the ledger; the triggers refuse the rest to everybody, the grants to this role.
GRANT INSERT ON ledger_entry, settlement_window TO ticketflow_run;
GRANT INSERT, UPDATE ON settlement_total, parked_organization TO ticketflow_run;
-- A month begins OPEN, a pass RUNNING and a chunk PLANNED.
GRANT INSERT (month), UPDATE ON settlement_period TO ticketflow_run;
GRANT INSERT (month, pass, cutoff, is_full), UPDATE ON settlement_pass TO ticketflow_run;
GRANT INSERT (month, pass, origin_month, low_id, high_id, organizations), UPDATE ON settlement_chunk TO ticketflow_run;
-- A pass that is given up lets go of the chunks that nobody has worked on.
GRANT DELETE ON settlement_chunk TO ticketflow_run;

-- A pass is cut off at the next movement's id, which it draws as a movement would.
GRANT USAGE ON SEQUENCE money_movement_id_seq TO ticketflow_run;
GRANT INSERT ON organization_left_out TO ticketflow_run;

-- What the jobs on schedules do to events, reservations and their own records; of an event or a reservation only what
-- its end changes.
GRANT UPDATE (status, closed_at) ON event TO ticketflow_run;
GRANT UPDATE (status, confirmed_at, expired_at, expired_by, stuck_reported_at) ON reservation TO ticketflow_run;
GRANT INSERT ON reminder, alert TO ticketflow_run;
-- What an alert is about and when it began stays.
GRANT INSERT (kind, subject, severity, key, payload, first_at, last_at, told_at),
    UPDATE (payload, occurrences, last_at, told_at, resolved_at, resolved_by) ON alert_group TO ticketflow_run;
GRANT UPDATE (state, outbox_event_id, told_starts_at, told_venue, changes_told) ON reminder TO ticketflow_run;
GRANT INSERT, UPDATE ON reminder_kind TO ticketflow_run;
GRANT INSERT, DELETE ON reminder_lead TO ticketflow_run;
-- What changed is written down by the database; the job that looked at it says so, and deletes it later.
GRANT UPDATE (looked_at), DELETE ON event_change TO ticketflow_run;
GRANT EXECUTE ON FUNCTION reminders_undecided(bigint) TO ticketflow_run;
-- To whom no mail goes any more; an entry is cleared and never deleted.
GRANT INSERT (address, reason, detail, outbox_event_id, suppressed_by), UPDATE (cleared_by, cleared_at)
    ON mail_suppression TO ticketflow_run;
-- What a job leaves out is remembered until it is done after all.
GRANT INSERT, UPDATE, DELETE ON bad_row TO ticketflow_run;
GRANT INSERT, UPDATE, DELETE ON job_execution TO ticketflow_run;
GRANT INSERT, DELETE ON job_firing TO ticketflow_run;

-- An event begins PENDING and without bytes, is of a type that outbox_event_type names, and leaves the outbox by a
-- function that knows what is over and done with.
GRANT INSERT (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at) ON outbox_event
    TO ticketflow_run;
GRANT EXECUTE ON FUNCTION outbox_prune(timestamptz, bigint) TO ticketflow_run;
-- Reminders and alerts, which keep anybody from being notified twice, go by functions too.
GRANT EXECUTE ON FUNCTION reminder_prune(timestamptz, bigint, bigint), alert_prune(timestamptz, bigint)
    TO ticketflow_run;

-- Of an event in the outbox only what its delivery changes.
GRANT UPDATE (state, available_at, attempts, attempts_forgiven, lease_until, owner, body, first_attempt_at,
    last_attempt_at, doubtful_since, last_error, last_response, destination, tried_since, lost, last_owner, ended_at,
    reconsider_until) ON outbox_event TO ticketflow_run;
-- How each attempt ended, for as long as its event; how each destination does.
GRANT INSERT ON outbox_attempt TO ticketflow_run;
GRANT INSERT, UPDATE ON delivery_destination TO ticketflow_run;
GRANT INSERT, DELETE ON delivery_stop TO ticketflow_run;

-- Closed books: balances and payouts are only ever added; of a payout only what becomes of it changes, and none begins
-- with an answer.
GRANT INSERT ON organization_balance, statement_mail TO ticketflow_run;
GRANT INSERT (public_id, organization_id, currency, month, amount, state, reason, run_id, anomalies_to) ON payout
    TO ticketflow_run;
GRANT UPDATE (state, reason, provider_ref, first_attempt_at, answered_at, returned_month, decided_by) ON payout
    TO ticketflow_run;
-- What is wrong among movements is noted, and accepted by people.
GRANT INSERT, UPDATE ON movement_anomaly TO ticketflow_run;
GRANT UPDATE (searched_to) ON anomaly_search TO ticketflow_run;
GRANT UPDATE (balance_month) ON opening_balance TO ticketflow_run;
