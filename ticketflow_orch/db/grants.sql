-- What each of the four group roles may do. `ticketflow roles` runs all of this in one transaction, as the owner of the
-- schema, and takes it back where it changes nothing; see roles.py. Grant one of them to a login:
--   ticketflow_owner    migrates, imports, erases; all that the migrations made belongs to it
--   ticketflow_run      what runs and the commands of operators need
--   ticketflow_relay    what delivering needs
--   ticketflow_analyst  reads all but what names buyers

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['ticketflow_owner', 'ticketflow_run', 'ticketflow_relay', 'ticketflow_analyst'] LOOP
        IF to_regrole(name) IS NULL THEN
            EXECUTE 'CREATE ROLE ' || name || ' NOLOGIN';
        END IF;
    END LOOP;
END $$;

-- A temporary table hides one of the same name from statements that do not say whose they mean; an import, which the
-- owner runs, needs them. Only the database's owner can take this from everybody, and who is not is refused before this
-- where it is not done yet.
DO $$
DECLARE
    database text := quote_ident(current_database());
    others text := 'PUBLIC, ticketflow_run, ticketflow_relay, ticketflow_analyst';
BEGIN
    IF pg_has_role(current_user, (SELECT datdba FROM pg_database WHERE datname = current_database()), 'USAGE') THEN
        EXECUTE 'REVOKE TEMPORARY ON DATABASE ' || database || ' FROM ' || others;
        EXECUTE 'GRANT TEMPORARY ON DATABASE ' || database || ' TO ticketflow_owner, ' || quote_ident(current_user);
    END IF;
    IF pg_has_role(current_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'public'), 'USAGE') THEN
        EXECUTE 'REVOKE CREATE ON SCHEMA public FROM ' || others;
        GRANT CREATE ON SCHEMA public TO ticketflow_owner;
        GRANT USAGE ON SCHEMA public TO ticketflow_owner, ticketflow_run, ticketflow_relay, ticketflow_analyst;
    END IF;
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM ticketflow_run, ticketflow_relay, ticketflow_analyst;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM ticketflow_run, ticketflow_relay, ticketflow_analyst;
REVOKE ALL ON ALL ROUTINES IN SCHEMA public FROM ticketflow_run, ticketflow_relay, ticketflow_analyst;


-- Runs.
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


-- The relay. What it reads of itself, and to judge whether it may deliver at all.
GRANT SELECT ON alembic_version, installation, outbox_event, outbox_event_type, outbox_attempt, delivery_destination,
    delivery_stop, alert, alert_group TO ticketflow_relay;
-- What mails are made of: reminders, and the statements that are attached.
GRANT SELECT ON mail_suppression, reservation, event, organization, reminder, reminder_kind TO ticketflow_relay;
GRANT SELECT ON organization_balance, currency, settlement_period, settlement_window, settlement_pass,
    settlement_chunk, ledger_entry, money_movement TO ticketflow_relay;
-- What payouts are held against before each attempt.
GRANT SELECT ON payout, parked_organization TO ticketflow_relay;

GRANT UPDATE (state, available_at, attempts, attempts_forgiven, lease_until, owner, body, first_attempt_at,
    last_attempt_at, doubtful_since, last_error, last_response, destination, tried_since, lost, last_owner, ended_at,
    reconsider_until) ON outbox_event TO ticketflow_relay;
GRANT INSERT ON outbox_attempt TO ticketflow_relay;
GRANT INSERT, UPDATE ON delivery_destination TO ticketflow_relay;
-- A receiver that is gone is stopped; it is people who resume it.
GRANT INSERT ON delivery_stop TO ticketflow_relay;
-- An alert is an event too, and written where one begins.
GRANT INSERT (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at) ON outbox_event
    TO ticketflow_relay;
GRANT INSERT ON alert TO ticketflow_relay;
GRANT INSERT (kind, subject, severity, key, payload, first_at, last_at, told_at),
    UPDATE (payload, occurrences, last_at, told_at) ON alert_group TO ticketflow_relay;
-- What a mail said, by which it is judged whether a change needs another.
GRANT UPDATE (told_starts_at, told_venue) ON reminder TO ticketflow_relay;
-- What a provider answered.
GRANT UPDATE (state, reason, provider_ref, first_attempt_at, answered_at) ON payout TO ticketflow_relay;
-- It locks whose parking it goes by, for which Postgres asks for a column that may be updated: the one that decides
-- nothing.
GRANT UPDATE (error) ON parked_organization TO ticketflow_relay;


-- Analysts: everything but addresses of buyers, and what may hold one, such as texts of receivers and bytes of mails.
GRANT SELECT ON alembic_version, anomaly_search, alert, currency, data_import, delivery_stop, event, event_change,
    installation, installation_change, job_execution, job_firing, late_capture, ledger_entry, money_movement,
    movement_anomaly, opening_balance, organization, organization_balance, organization_change, organization_currency,
    organization_left_out, outbox_event_type, parked_organization, payout, reminder, reminder_kind, reminder_lead,
    settlement_chunk, settlement_pass, settlement_period, settlement_total, settlement_window, statement_mail
    TO ticketflow_analyst;
GRANT SELECT (id, public_ref, event_id, quantity, status, created_at, expires_at, payment_started_at, confirmed_at,
    expired_at, stuck_reported_at, import_id, expired_by, cancelled_at) ON reservation TO ticketflow_analyst;
GRANT SELECT (id, event_id, aggregate_type, aggregate_id, event_type, dedupe_key, occurred_at, state, available_at,
    attempts, lease_until, ended_at, attempts_forgiven, owner, first_attempt_at, last_attempt_at, doubtful_since,
    destination, reconsider_until, tried_since, lost, last_owner) ON outbox_event TO ticketflow_analyst;
GRANT SELECT (outbox_id, attempt, began_at, ended_at, owner, destination, outcome) ON outbox_attempt
    TO ticketflow_analyst;
GRANT SELECT (id, reason, outbox_event_id, suppressed_by, suppressed_at, cleared_by, cleared_at) ON mail_suppression
    TO ticketflow_analyst;
GRANT SELECT (name, failing_since, pauses, open_until, probe_until, paused_until, rate, ceiling, throttled_at, rate_at,
    next_at) ON delivery_destination TO ticketflow_analyst;
GRANT SELECT (id, kind, subject, severity, key, occurrences, first_at, last_at, told_at, resolved_at, resolved_by)
    ON alert_group TO ticketflow_analyst;
GRANT SELECT (job, row_key, name, since, tried_at, alerted_at) ON bad_row TO ticketflow_analyst;
