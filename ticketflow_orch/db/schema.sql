CREATE DOMAIN public.month_start AS date
	CONSTRAINT month_start_check CHECK ((isfinite(VALUE) AND (EXTRACT(day FROM VALUE) = (1)::numeric)));

CREATE FUNCTION public.alert_prune(alerted_before timestamp with time zone, most bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    removed bigint;
BEGIN
    IF alerted_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'what was alerted in the last 39 days is remembered, and % is among it', alerted_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'alert';
    END IF;
    -- What stands is remembered, and so is what an event in the outbox still tells of.
    DELETE FROM alert WHERE (kind, key) IN (
        SELECT alert.kind, alert.key FROM alert LEFT JOIN alert_group ON alert_group.id = group_id
        WHERE alerted_at < alerted_before AND (group_id IS NULL OR resolved_at < alerted_before)
            AND NOT EXISTS (SELECT FROM outbox_event WHERE dedupe_key = alert.kind || ' ' || alert.key)
        LIMIT most);
    GET DIAGNOSTICS removed = ROW_COUNT;
    DELETE FROM alert_group
    WHERE resolved_at < alerted_before AND NOT EXISTS (SELECT FROM alert WHERE group_id = alert_group.id);
    RETURN removed;
END $$;

CREATE FUNCTION public.anomaly_search_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM settlement_pass WHERE state = 'DONE' AND cutoff >= NEW.searched_to) THEN
        RAISE EXCEPTION 'no settlement has read to %, so no search for anomalies has', NEW.searched_to
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.derived_id(installation uuid, kind text, key text) RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (encode(set_bit(set_bit(set_bit(set_bit(set_bit(set_bit(SUBSTRING(sha256((uuid_send(installation) || convert_to(((kind || ':'::text) || key), 'UTF8'::name))) FROM 1 FOR 16), (55)::bigint, 1), (54)::bigint, 0), (53)::bigint, 0), (52)::bigint, 0), (71)::bigint, 1), (70)::bigint, 0), 'hex'::text))::uuid;

CREATE FUNCTION public.event_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    INSERT INTO event_change (event_id, what)
    VALUES (NEW.id, CASE NEW.status WHEN 'OPEN' THEN 'MOVED' ELSE 'CANCELLED' END);
    RETURN NULL;
END $$;

CREATE FUNCTION public.installation_change_kept() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    INSERT INTO installation_change (name, before, after, changed_at, changed_by, changed_role)
    SELECT key, before.value, after.value, NEW.changed_at, NEW.changed_by, session_user
    FROM jsonb_each_text(to_jsonb(OLD)) AS before JOIN jsonb_each_text(to_jsonb(NEW)) AS after USING (key)
    WHERE before.value IS DISTINCT FROM after.value AND key NOT IN ('changed_at', 'changed_by');
    RETURN NULL;
END $$;

CREATE FUNCTION public.installation_rehearsal_fixed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    IF OLD.business_timezone IS NOT NULL OR EXISTS (SELECT FROM organization) THEN
        RAISE EXCEPTION 'whether a database is for rehearsals is said when it is made'
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.installation_stamp() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    NEW.changed_at := clock_timestamp();
    RETURN NEW;
END $$;

CREATE FUNCTION public.ledger_entry_period_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    refused record;
BEGIN
    PERFORM FROM settlement_period WHERE month IN (SELECT month FROM posted) ORDER BY month FOR SHARE;
    SELECT posted.month, state INTO refused FROM posted LEFT JOIN settlement_period USING (month)
    WHERE state IS NULL OR state IN ('CLOSING', 'CLOSED') LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'month % is %', to_char(refused.month, 'YYYY-MM'), CASE
            WHEN refused.state IS NULL THEN 'not begun: it needs a settlement_period before anything is posted in it'
            ELSE 'closed: post the adjustment in the first month that is not'
        END USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
END $$;

CREATE FUNCTION public.money_movement_delete_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.money_movement_late_capture() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    held reservation;
BEGIN
    SELECT * INTO held FROM reservation WHERE id = NEW.reservation_id FOR SHARE;
    IF held.status IN ('EXPIRED', 'CANCELLED') THEN
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        VALUES ('capture', NEW.external_ref, 'PaymentAfterExpiry',
            jsonb_build_object('reservation', held.public_ref, 'movement', NEW.external_ref, 'status', held.status,
                'amount', NEW.amount, 'currency', NEW.currency),
            'PaymentAfterExpiry:' || NEW.external_ref, NEW.occurred_at)
        ON CONFLICT (dedupe_key) DO NOTHING;
        INSERT INTO late_capture (movement_id) VALUES (NEW.id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.money_movement_matches_reversed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    target money_movement;
    expected text := CASE
        WHEN NEW.is_void THEN NEW.kind
        WHEN NEW.kind = 'CHARGEBACK_REVERSAL' THEN 'CHARGEBACK'
        ELSE 'CAPTURE'
    END;
BEGIN
    SELECT * INTO target FROM money_movement WHERE id = NEW.reverses_id;
    IF target.kind IS DISTINCT FROM expected OR target.is_void THEN
        RAISE EXCEPTION 'movement % must reverse a % that is no void', NEW.external_ref, expected
            USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME;
    ELSIF NEW.is_void AND (NEW.amount, NEW.occurred_at) IS DISTINCT FROM (-target.amount, target.occurred_at) THEN
        RAISE EXCEPTION 'void % must carry the opposite amount and the same instant as what it voids', NEW.external_ref
            USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME;
    ELSIF (NEW.commission_rate_bps, NEW.commission_tax_bps) <> (target.commission_rate_bps, target.commission_tax_bps)
        AND (NEW.is_void OR NEW.commission_rate_bps <> 0) THEN
        RAISE EXCEPTION 'movement % must carry the commission rates of what it reverses', NEW.external_ref
            USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.money_movement_recorded() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.recorded_at := pg_catalog.clock_timestamp();
    RETURN NEW;
END $$;

CREATE FUNCTION public.organization_balance_period_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    refused record;
BEGIN
    PERFORM FROM settlement_period WHERE month IN (SELECT month FROM written) ORDER BY month FOR SHARE;
    SELECT written.month INTO refused FROM written LEFT JOIN settlement_period USING (month)
    WHERE state IS DISTINCT FROM 'CLOSING' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'month % is not being closed: balances are written while it is',
            to_char(refused.month, 'YYYY-MM')
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.organization_change_kept() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    INSERT INTO organization_change (organization_id, name, before, after, changed_by)
    VALUES (NEW.id, 'payouts_from', CAST(OLD.payouts_from AS text), CAST(NEW.payouts_from AS text),
        coalesce(nullif(current_setting('ticketflow.changed_by', true), ''), session_user));
    RETURN NULL;
END $$;

CREATE FUNCTION public.organization_currency_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    refused record;
BEGIN
    SELECT decided.from_month, period.month INTO refused
    FROM decided JOIN settlement_period AS period ON period.month >= decided.from_month
    WHERE period.state <> 'OPEN' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no currency changes from % on, because % is settled',
            to_char(refused.from_month, 'YYYY-MM'), to_char(refused.month, 'YYYY-MM')
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.organization_delete_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.organization_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.outbox_event_announce() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    IF pg_trigger_depth() = 1 THEN
        PERFORM pg_notify('ticketflow_outbox', '');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.outbox_event_end_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RAISE EXCEPTION 'event % does not end at %, which is past', NEW.event_id, NEW.ended_at
            USING ERRCODE = 'insufficient_privilege', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.outbox_event_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $_$
DECLARE
    refused record;
BEGIN
    IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        SELECT event_type INTO refused FROM added
        WHERE NOT EXISTS (SELECT FROM outbox_event_type WHERE name = event_type) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION '% is no type of event that % may write', refused.event_type, current_user
                USING ERRCODE = 'insufficient_privilege', TABLE = TG_TABLE_NAME;
        END IF;
    END IF;
    SELECT added.aggregate_id, added.payload INTO refused
    FROM added
    LEFT JOIN payout ON public_id = CASE
        WHEN aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN CAST(aggregate_id AS uuid) END
    LEFT JOIN organization ON organization.id = payout.organization_id
    WHERE event_type = 'PayoutRequested' AND (
        payout.state IS DISTINCT FROM 'REQUESTED' OR aggregate_type <> 'payout'
        OR dedupe_key <> 'PayoutRequested:' || public_id
        OR NOT payload @> jsonb_build_object(
            'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),
            'currency', payout.currency, 'amount', amount))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no payout % asks for what its event says: %', refused.aggregate_id, refused.payload
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $_$;

CREATE FUNCTION public.outbox_event_named() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    NEW.event_id := derived_id((SELECT id FROM installation), 'outbox_event', NEW.dedupe_key);
    RETURN NEW;
END $$;

CREATE FUNCTION public.outbox_event_names_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.outbox_prune(ended_before timestamp with time zone, most bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    removed bigint;
BEGIN
    IF ended_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'what ended in the last 39 days stays in the outbox, and % is among them', ended_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'outbox_event';
    END IF;
    WITH gone AS (
        DELETE FROM outbox_event WHERE id IN (
            SELECT id FROM outbox_event WHERE ended_at < ended_before ORDER BY ended_at LIMIT most)
        RETURNING id
    ), attempts AS (
        DELETE FROM outbox_attempt USING gone WHERE outbox_id = gone.id
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END $$;

CREATE FUNCTION public.payout_balance_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    refused record;
BEGIN
    SELECT written.*, payable INTO refused
    FROM written
    LEFT JOIN settlement_period USING (month)
    LEFT JOIN organization_balance USING (organization_id, currency, month)
    WHERE settlement_period.state IS DISTINCT FROM 'CLOSED' OR payable IS DISTINCT FROM written.amount
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a payout of % % to organization % for %: its closed balance says %', refused.amount,
            refused.currency, refused.organization_id, to_char(refused.month, 'YYYY-MM'),
            coalesce(CAST(refused.payable AS text), 'nothing')
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.payout_held_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    PERFORM FROM payout WHERE public_id = CAST(NEW.aggregate_id AS uuid) AND state = 'HELD';
    IF FOUND THEN
        RAISE EXCEPTION 'payout % is held: release the payout, and its event goes too', NEW.aggregate_id
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'payout';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.payout_named() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    SELECT derived_id(installation.id, 'payout',
        external_ref || ':' || NEW.currency || ':' || to_char(NEW.month, 'YYYY-MM')) INTO NEW.public_id
    FROM organization, installation WHERE organization.id = NEW.organization_id;
    RETURN NEW;
END $$;

CREATE FUNCTION public.payout_names_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.payouts_from_guard() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.refuse() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
END $$;

CREATE FUNCTION public.refuse_old_snapshot() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND NOT EXISTS (
        SELECT FROM pg_locks
        WHERE pid = pg_backend_pid() AND relation = to_regclass(TG_ARGV[0]) AND mode = 'ShareRowExclusiveLock')
    THEN
        RAISE EXCEPTION 'a transaction in % may not see what others have committed: change % in READ COMMITTED',
            upper(current_setting('transaction_isolation')), TG_TABLE_NAME
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.refuse_transition() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION '% may not go from % to %', TG_TABLE_NAME,
        to_jsonb(OLD) ->> TG_ARGV[0], to_jsonb(NEW) ->> TG_ARGV[0]
        USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
END $$;

CREATE FUNCTION public.refuse_while_settling() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    LOCK TABLE money_movement IN ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM settlement_pass WHERE state = 'RUNNING') THEN
        RAISE EXCEPTION 'nothing is deleted from % while a settlement runs: try again when it has ended', TG_TABLE_NAME
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.reminder_prune(dated_before timestamp with time zone, low bigint, high bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    removed bigint;
BEGIN
    IF dated_before > clock_timestamp() - interval '39 days' THEN
        RAISE EXCEPTION 'reminders of the last 39 days stay, and those before % are among them', dated_before
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = 'reminder';
    END IF;
    DELETE FROM reminder
    WHERE ctid >= format('(%s,0)', low)::tid AND ctid < format('(%s,0)', high)::tid
        AND event_date < CAST(dated_before AT TIME ZONE 'UTC' AS date) - 1
        AND NOT EXISTS (SELECT FROM outbox_event WHERE outbox_event.event_id = reminder.outbox_event_id);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

CREATE FUNCTION public.reminders_undecided(moved bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM reminder USING reservation
    WHERE reservation_id = reservation.id AND event_id = moved AND reminder.state <> 'QUEUED';
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

CREATE FUNCTION public.reservation_cancelled() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    NEW.cancelled_at := clock_timestamp();
    RETURN NEW;
END $$;

CREATE FUNCTION public.reservation_needs_open_event() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    PERFORM FROM event WHERE id = NEW.event_id AND status = 'OPEN' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'reservation % is refused: event % is not open', NEW.public_ref, NEW.event_id
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.reservation_payment_resolved() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
    VALUES ('reservation', NEW.public_ref, 'ReservationPaymentResolved',
        jsonb_build_object('ref', NEW.public_ref, 'status', NEW.status, 'payment_started_at', OLD.payment_started_at),
        'ReservationPaymentResolved:' || NEW.public_ref || ':' || to_char(
            coalesce(OLD.payment_started_at, OLD.expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        clock_timestamp())
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION public.reservation_report_ends() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    NEW.stuck_reported_at := NULL;
    RETURN NEW;
END $$;

CREATE FUNCTION public.settlement_has_read(movement bigint, organization bigint, about date) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
    SELECT about IS NOT NULL AND (movement < settlement_read_to(about) OR EXISTS (
        SELECT FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
        WHERE chunk.origin_month = about AND cutoff > movement AND chunk.state <> 'PLANNED'
            AND organization BETWEEN low_id AND coalesce(high_id, organization)))
$$;

CREATE FUNCTION public.settlement_period_balance_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
BEGIN
    IF EXISTS (SELECT FROM organization_balance WHERE month = OLD.month) THEN
        RAISE EXCEPTION 'month % has balances: its closing can only be finished', to_char(OLD.month, 'YYYY-MM')
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.settlement_read_to(about date) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
    SELECT coalesce(
        (SELECT read_to FROM settlement_period WHERE month = about),
        (SELECT read_to FROM settlement_period AS first
            WHERE state = 'CLOSED' AND about < month ORDER BY month LIMIT 1), 0)
$$;

CREATE FUNCTION public.settlement_window_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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

CREATE FUNCTION public.taken_in_guard() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
DECLARE
    taken date := CAST(to_jsonb(NEW) ->> TG_ARGV[0] AS date);
BEGIN
    PERFORM FROM settlement_period WHERE month = taken AND state = 'CLOSING';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'month % takes nothing in from %: it is not being closed', to_char(taken, 'YYYY-MM'),
            TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE public.alert (
    kind text NOT NULL,
    key text NOT NULL,
    alerted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    group_id bigint,
    event_id uuid
);

CREATE TABLE public.alert_group (
    id bigint NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    severity text NOT NULL,
    key text NOT NULL,
    payload jsonb NOT NULL,
    occurrences bigint DEFAULT 1 NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    told_at timestamp with time zone NOT NULL,
    resolved_at timestamp with time zone,
    resolved_by text,
    CONSTRAINT alert_group_check CHECK (((resolved_at IS NOT NULL) = (resolved_by IS NOT NULL))),
    CONSTRAINT alert_group_occurrences_check CHECK ((occurrences >= 1)),
    CONSTRAINT alert_group_severity_check CHECK ((severity = ANY (ARRAY['PAGE'::text, 'TICKET'::text, 'INFO'::text])))
);

ALTER TABLE public.alert_group ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.alert_group_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.anomaly_search (
    only_one boolean DEFAULT true NOT NULL,
    searched_to bigint DEFAULT 0 NOT NULL,
    CONSTRAINT anomaly_search_only_one_check CHECK (only_one)
);

CREATE TABLE public.bad_row (
    job text NOT NULL,
    row_key text NOT NULL,
    name text NOT NULL,
    error text NOT NULL,
    since timestamp with time zone NOT NULL,
    tried_at timestamp with time zone NOT NULL,
    alerted_at timestamp with time zone
);

CREATE TABLE public.currency (
    code character(3) NOT NULL,
    exponent smallint NOT NULL,
    payout_minimum bigint DEFAULT 0 NOT NULL,
    first_day date,
    last_day date,
    CONSTRAINT currency_code_check CHECK ((code ~ '^[A-Z]{3}$'::text)),
    CONSTRAINT currency_days_check CHECK ((last_day >= first_day)),
    CONSTRAINT currency_exponent_check CHECK (((exponent >= 0) AND (exponent <= 4))),
    CONSTRAINT currency_payout_minimum_check CHECK ((payout_minimum >= 0))
);

CREATE TABLE public.data_import (
    id bigint NOT NULL,
    source text NOT NULL,
    imported_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    undone_at timestamp with time zone,
    organizations bigint DEFAULT 0 NOT NULL,
    events bigint DEFAULT 0 NOT NULL,
    reservations bigint DEFAULT 0 NOT NULL,
    money_movements bigint DEFAULT 0 NOT NULL,
    opening_balances bigint DEFAULT 0 NOT NULL
);

ALTER TABLE public.data_import ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.data_import_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.delivery_destination (
    name text NOT NULL,
    failing_since timestamp with time zone,
    pauses integer DEFAULT 0 NOT NULL,
    open_until timestamp with time zone,
    probe_until timestamp with time zone,
    paused_until timestamp with time zone,
    rate numeric,
    ceiling numeric,
    throttled_at timestamp with time zone,
    rate_at timestamp with time zone,
    next_at timestamp with time zone,
    last_error text,
    CONSTRAINT delivery_destination_pauses_check CHECK ((pauses >= 0)),
    CONSTRAINT delivery_destination_rate_check CHECK ((rate > (0)::numeric))
);

CREATE TABLE public.delivery_stop (
    kind text NOT NULL,
    name text NOT NULL,
    reason text NOT NULL,
    stopped_by text NOT NULL,
    stopped_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT delivery_stop_kind_check CHECK ((kind = ANY (ARRAY['DESTINATION'::text, 'EVENT_TYPE'::text])))
);

CREATE TABLE public.event (
    id bigint NOT NULL,
    public_id uuid DEFAULT gen_random_uuid() NOT NULL,
    external_ref text NOT NULL,
    organization_id bigint NOT NULL,
    title text NOT NULL,
    status text NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    timezone text NOT NULL,
    closed_at timestamp with time zone,
    import_id bigint,
    venue text,
    CONSTRAINT event_check CHECK ((ends_at > starts_at)),
    CONSTRAINT event_check1 CHECK (((closed_at IS NOT NULL) = (status = 'CLOSED'::text))),
    CONSTRAINT event_instants_check CHECK (((starts_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (starts_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (ends_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (ends_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (closed_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (closed_at < '10000-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT event_status_check CHECK ((status = ANY (ARRAY['DRAFT'::text, 'OPEN'::text, 'CLOSED'::text, 'CANCELLED'::text])))
);

CREATE TABLE public.event_change (
    id bigint NOT NULL,
    event_id bigint NOT NULL,
    what text NOT NULL,
    changed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    looked_at timestamp with time zone,
    CONSTRAINT event_change_what_check CHECK ((what = ANY (ARRAY['MOVED'::text, 'CANCELLED'::text])))
);

ALTER TABLE public.event_change ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.event_change_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.event ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.installation (
    only_one boolean DEFAULT true NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    business_timezone text,
    first_month public.month_start,
    payouts_from public.month_start,
    mail_from timestamp with time zone,
    auto_close boolean,
    routes_digest text,
    changed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    changed_by text NOT NULL,
    rehearsal boolean DEFAULT false NOT NULL,
    CONSTRAINT installation_check CHECK (((first_month IS NULL) = (business_timezone IS NULL))),
    CONSTRAINT installation_check1 CHECK (((auto_close IS NULL) = (business_timezone IS NULL))),
    CONSTRAINT installation_only_one_check CHECK (only_one)
);

CREATE TABLE public.installation_change (
    id bigint NOT NULL,
    name text NOT NULL,
    before text,
    after text,
    changed_at timestamp with time zone NOT NULL,
    changed_by text NOT NULL,
    changed_role text DEFAULT CURRENT_USER NOT NULL
);

ALTER TABLE public.installation_change ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.installation_change_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.job_execution (
    job text NOT NULL,
    idempotency_key text NOT NULL,
    state text NOT NULL,
    attempt integer DEFAULT 1 NOT NULL,
    owner text NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease_until timestamp with time zone,
    result jsonb,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT job_execution_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT job_execution_check CHECK (((lease_until IS NOT NULL) = (state = 'PROCESSING'::text))),
    CONSTRAINT job_execution_check1 CHECK (((finished_at IS NOT NULL) = (state <> 'PROCESSING'::text))),
    CONSTRAINT job_execution_state_check CHECK ((state = ANY (ARRAY['PROCESSING'::text, 'COMPLETED'::text, 'FAILED'::text])))
);

CREATE TABLE public.job_firing (
    id bigint NOT NULL,
    job text NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    partition text,
    fired_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    run_id text NOT NULL,
    parent_run_id text,
    outcome text NOT NULL,
    CONSTRAINT job_firing_outcome_check CHECK ((outcome = ANY (ARRAY['ACCEPTED'::text, 'DUPLICATE'::text, 'RETRY'::text])))
);

ALTER TABLE public.job_firing ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.job_firing_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.late_capture (
    movement_id bigint NOT NULL
);

CREATE TABLE public.ledger_entry (
    organization_id bigint NOT NULL,
    month public.month_start NOT NULL,
    currency character(3) NOT NULL,
    origin_month public.month_start NOT NULL,
    captures bigint NOT NULL,
    refunds bigint NOT NULL,
    chargebacks bigint NOT NULL,
    fees bigint NOT NULL,
    commission bigint NOT NULL,
    commission_tax bigint NOT NULL,
    net bigint NOT NULL,
    reason text,
    settlement_pass integer NOT NULL,
    posted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    run_id text,
    sequence integer DEFAULT 0 NOT NULL,
    CONSTRAINT ledger_entry_net_check CHECK ((net = (((((captures + refunds) + chargebacks) + fees) - commission) - commission_tax))),
    CONSTRAINT ledger_entry_origin_month_check CHECK (((origin_month)::date <= (month)::date)),
    CONSTRAINT ledger_entry_sequence_check CHECK (((sequence IS NOT NULL) AND (sequence >= 0)))
);

CREATE TABLE public.mail_suppression (
    id bigint NOT NULL,
    address text NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL,
    outbox_event_id uuid,
    suppressed_by text NOT NULL,
    suppressed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    cleared_by text,
    cleared_at timestamp with time zone,
    CONSTRAINT mail_suppression_check CHECK (((cleared_at IS NOT NULL) = (cleared_by IS NOT NULL))),
    CONSTRAINT mail_suppression_reason_check CHECK ((reason = ANY (ARRAY['BOUNCE'::text, 'COMPLAINT'::text, 'UNSUBSCRIBE'::text, 'BY_HAND'::text])))
);

ALTER TABLE public.mail_suppression ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.mail_suppression_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.money_movement (
    id bigint NOT NULL,
    external_ref text NOT NULL,
    organization_id bigint NOT NULL,
    reservation_id bigint,
    kind text NOT NULL,
    is_void boolean DEFAULT false NOT NULL,
    reverses_id bigint,
    currency character(3) NOT NULL,
    amount bigint NOT NULL,
    commission_rate_bps integer NOT NULL,
    commission_tax_bps integer NOT NULL,
    reason text,
    occurred_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    import_id bigint,
    CONSTRAINT money_movement_commission_free_check CHECK (((kind <> ALL (ARRAY['FEE'::text, 'MANUAL'::text])) OR ((commission_rate_bps = 0) AND (commission_tax_bps = 0) AND (reason IS NOT NULL)))),
    CONSTRAINT money_movement_commission_rate_bps_check CHECK (((commission_rate_bps >= 0) AND (commission_rate_bps <= 10000))),
    CONSTRAINT money_movement_commission_tax_bps_check CHECK (((commission_tax_bps >= 0) AND (commission_tax_bps <= 10000))),
    CONSTRAINT money_movement_kind_check CHECK ((kind = ANY (ARRAY['CAPTURE'::text, 'REFUND'::text, 'CHARGEBACK'::text, 'CHARGEBACK_REVERSAL'::text, 'FEE'::text, 'MANUAL'::text]))),
    CONSTRAINT money_movement_occurred_at_check CHECK (((occurred_at >= '1970-01-02 00:00:00+00'::timestamp with time zone) AND (occurred_at < '9998-12-31 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT money_movement_reverses_check CHECK (((reverses_id IS NOT NULL) = (is_void OR (kind = ANY (ARRAY['REFUND'::text, 'CHARGEBACK'::text, 'CHARGEBACK_REVERSAL'::text]))))),
    CONSTRAINT money_movement_sign_check CHECK (((amount <> 0) AND
CASE kind
    WHEN 'MANUAL'::text THEN true
    WHEN 'CAPTURE'::text THEN ((amount > 0) <> is_void)
    WHEN 'CHARGEBACK_REVERSAL'::text THEN ((amount > 0) <> is_void)
    ELSE ((amount < 0) <> is_void)
END))
);

ALTER TABLE public.money_movement ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.money_movement_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.movement_anomaly (
    movement_id bigint NOT NULL,
    why text NOT NULL,
    latest_id bigint NOT NULL,
    organization_id bigint NOT NULL,
    currency character(3) NOT NULL,
    found_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    accepted_to bigint,
    accepted_at timestamp with time zone,
    accepted_by text,
    CONSTRAINT movement_anomaly_check CHECK (((accepted_at IS NOT NULL) = (accepted_to IS NOT NULL))),
    CONSTRAINT movement_anomaly_check1 CHECK (((accepted_by IS NOT NULL) = (accepted_to IS NOT NULL))),
    CONSTRAINT movement_anomaly_why_check CHECK ((why = ANY (ARRAY['BEYOND'::text, 'EARLIER'::text, 'TWICE'::text])))
);

CREATE TABLE public.opening_balance (
    id bigint NOT NULL,
    organization_id bigint NOT NULL,
    currency character(3) NOT NULL,
    amount bigint NOT NULL,
    balance_month public.month_start,
    import_id bigint,
    CONSTRAINT opening_balance_amount_check CHECK ((amount <> 0))
);

ALTER TABLE public.opening_balance ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.opening_balance_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.organization (
    id bigint NOT NULL,
    external_ref text NOT NULL,
    name text NOT NULL,
    timezone text NOT NULL,
    currency character(3) NOT NULL,
    commission_rate_bps integer NOT NULL,
    commission_tax_bps integer NOT NULL,
    joined_on date NOT NULL,
    left_on date,
    contact_email text,
    locale text,
    import_id bigint,
    payouts_from date,
    CONSTRAINT organization_check CHECK ((left_on >= joined_on)),
    CONSTRAINT organization_commission_rate_bps_check CHECK (((commission_rate_bps >= 0) AND (commission_rate_bps <= 10000))),
    CONSTRAINT organization_commission_tax_bps_check CHECK (((commission_tax_bps >= 0) AND (commission_tax_bps <= 10000))),
    CONSTRAINT organization_days_check CHECK (((joined_on >= '0001-01-01'::date) AND (joined_on < '10000-01-01'::date) AND (left_on >= '0001-01-01'::date) AND (left_on < '10000-01-01'::date))),
    CONSTRAINT organization_payouts_from_check CHECK (((payouts_from >= '1970-01-01'::date) AND (payouts_from < '9999-01-01'::date) AND (EXTRACT(day FROM payouts_from) = (1)::numeric)))
);

CREATE TABLE public.organization_balance (
    organization_id bigint NOT NULL,
    currency character(3) NOT NULL,
    month public.month_start NOT NULL,
    previous_month public.month_start,
    opening bigint NOT NULL,
    net bigint NOT NULL,
    returned bigint NOT NULL,
    due bigint NOT NULL,
    payable bigint NOT NULL,
    closing bigint NOT NULL,
    settled_elsewhere bigint DEFAULT 0 NOT NULL,
    payouts_from date,
    knows_history boolean DEFAULT false NOT NULL,
    CONSTRAINT organization_balance_check CHECK (((previous_month)::date < (month)::date)),
    CONSTRAINT organization_balance_check1 CHECK (((payable >= 0) AND ((payable = 0) OR (payable = due)))),
    CONSTRAINT organization_balance_closing_check CHECK ((closing = (due - payable))),
    CONSTRAINT organization_balance_due_check CHECK ((due = (((opening + net) + returned) - settled_elsewhere))),
    CONSTRAINT organization_balance_payouts_from_check CHECK (((payable = 0) OR (NOT knows_history) OR ((payouts_from IS NOT NULL) AND ((month)::date >= payouts_from)))),
    CONSTRAINT organization_balance_returned_check CHECK ((returned >= 0))
);

CREATE TABLE public.organization_change (
    id bigint NOT NULL,
    organization_id bigint NOT NULL,
    name text NOT NULL,
    before text,
    after text,
    changed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    changed_by text NOT NULL,
    changed_role text DEFAULT SESSION_USER NOT NULL
);

ALTER TABLE public.organization_change ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.organization_change_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.organization_currency (
    id bigint NOT NULL,
    organization_id bigint NOT NULL,
    from_month public.month_start NOT NULL,
    currency character(3) NOT NULL,
    decided_by text NOT NULL,
    decided_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE public.organization_currency ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.organization_currency_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.organization ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.organization_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.organization_left_out (
    month public.month_start NOT NULL,
    organization_id bigint NOT NULL
);

CREATE TABLE public.outbox_attempt (
    outbox_id bigint NOT NULL,
    attempt integer NOT NULL,
    began_at timestamp with time zone,
    ended_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    owner text,
    destination text,
    outcome text NOT NULL,
    error text,
    response text
);

CREATE TABLE public.outbox_event (
    id bigint NOT NULL,
    event_id uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    dedupe_key text NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    state text DEFAULT 'PENDING'::text NOT NULL,
    available_at timestamp with time zone DEFAULT clock_timestamp(),
    attempts integer DEFAULT 0 NOT NULL,
    lease_until timestamp with time zone,
    last_error text,
    ended_at timestamp with time zone,
    attempts_forgiven integer DEFAULT 0 NOT NULL,
    owner text,
    body bytea,
    first_attempt_at timestamp with time zone,
    last_attempt_at timestamp with time zone,
    doubtful_since timestamp with time zone,
    last_response text,
    destination text,
    reconsider_until timestamp with time zone,
    tried_since timestamp with time zone,
    lost integer DEFAULT 0 NOT NULL,
    last_owner text,
    CONSTRAINT outbox_event_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT outbox_event_attempts_forgiven_check CHECK (((attempts_forgiven >= 0) AND (attempts_forgiven <= attempts))),
    CONSTRAINT outbox_event_check CHECK (((lease_until IS NOT NULL) = (state = 'INFLIGHT'::text))),
    CONSTRAINT outbox_event_check1 CHECK (((owner IS NOT NULL) = (state = 'INFLIGHT'::text))),
    CONSTRAINT outbox_event_check2 CHECK (((ended_at IS NOT NULL) = (state = ANY (ARRAY['DELIVERED'::text, 'SUPPRESSED'::text])))),
    CONSTRAINT outbox_event_check3 CHECK (((available_at IS NOT NULL) = (state = ANY (ARRAY['PENDING'::text, 'INFLIGHT'::text])))),
    CONSTRAINT outbox_event_reconsider_until_check CHECK (((reconsider_until IS NULL) OR (state = 'SUPPRESSED'::text))),
    CONSTRAINT outbox_event_state_check CHECK ((state = ANY (ARRAY['PENDING'::text, 'INFLIGHT'::text, 'DELIVERED'::text, 'DEAD'::text, 'IN_DOUBT'::text, 'SUPPRESSED'::text, 'HELD'::text])))
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0.02');

ALTER TABLE public.outbox_event ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.outbox_event_type (
    name text NOT NULL
);

CREATE TABLE public.parked_organization (
    id bigint NOT NULL,
    organization_id bigint NOT NULL,
    month public.month_start NOT NULL,
    error text,
    reason text,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    resolved_at timestamp with time zone,
    parked_by text,
    resolved_by text,
    CONSTRAINT parked_organization_check CHECK ((num_nonnulls(error, reason) = 1)),
    CONSTRAINT parked_organization_check1 CHECK (((parked_by IS NULL) OR (reason IS NOT NULL))),
    CONSTRAINT parked_organization_check2 CHECK (((resolved_by IS NULL) OR (resolved_at IS NOT NULL)))
);

ALTER TABLE public.parked_organization ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.parked_organization_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.payout (
    id bigint NOT NULL,
    public_id uuid NOT NULL,
    organization_id bigint NOT NULL,
    currency character(3) NOT NULL,
    month public.month_start NOT NULL,
    amount bigint NOT NULL,
    state text NOT NULL,
    reason text,
    provider_ref text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    first_attempt_at timestamp with time zone,
    answered_at timestamp with time zone,
    returned_month public.month_start,
    decided_by text,
    run_id text,
    anomalies_to bigint,
    CONSTRAINT payout_amount_check CHECK ((amount > 0)),
    CONSTRAINT payout_check CHECK (((answered_at IS NOT NULL) OR (state <> ALL (ARRAY['CONFIRMED'::text, 'REJECTED'::text, 'RETURNED'::text])))),
    CONSTRAINT payout_check1 CHECK (((returned_month IS NULL) OR (state = ANY (ARRAY['REJECTED'::text, 'RETURNED'::text])))),
    CONSTRAINT payout_state_check CHECK ((state = ANY (ARRAY['HELD'::text, 'REQUESTED'::text, 'CONFIRMED'::text, 'REJECTED'::text, 'RETURNED'::text, 'IN_DOUBT'::text])))
);

ALTER TABLE public.payout ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.payout_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.reminder (
    id bigint NOT NULL,
    reservation_id bigint NOT NULL,
    kind text NOT NULL,
    event_date date NOT NULL,
    state text NOT NULL,
    outbox_event_id uuid,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    told_starts_at timestamp with time zone,
    told_venue text,
    changes_told integer DEFAULT 0 NOT NULL,
    CONSTRAINT reminder_check CHECK (((outbox_event_id IS NOT NULL) = (state = 'QUEUED'::text))),
    CONSTRAINT reminder_state_check CHECK ((state = ANY (ARRAY['QUEUED'::text, 'SKIPPED'::text, 'MISSED'::text])))
);

ALTER TABLE public.reminder ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.reminder_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.reminder_kind (
    kind text NOT NULL,
    lead interval NOT NULL,
    enabled_at timestamp with time zone NOT NULL,
    CONSTRAINT reminder_kind_lead_check CHECK ((lead > '00:00:00'::interval))
);

CREATE TABLE public.reminder_lead (
    kind text NOT NULL,
    since timestamp with time zone NOT NULL,
    lead interval NOT NULL,
    CONSTRAINT reminder_lead_lead_check CHECK ((lead > '00:00:00'::interval))
);

CREATE TABLE public.reservation (
    id bigint NOT NULL,
    public_ref text NOT NULL,
    event_id bigint NOT NULL,
    buyer_email text NOT NULL,
    quantity integer NOT NULL,
    status text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    payment_started_at timestamp with time zone,
    confirmed_at timestamp with time zone,
    expired_at timestamp with time zone,
    stuck_reported_at timestamp with time zone,
    import_id bigint,
    expired_by text,
    cancelled_at timestamp with time zone,
    CONSTRAINT reservation_check CHECK (((confirmed_at IS NOT NULL) OR (status <> 'CONFIRMED'::text))),
    CONSTRAINT reservation_check1 CHECK (((expired_at IS NOT NULL) = (status = 'EXPIRED'::text))),
    CONSTRAINT reservation_instants_check CHECK (((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (payment_started_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (payment_started_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (confirmed_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (confirmed_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (expired_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (expired_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (stuck_reported_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (stuck_reported_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (cancelled_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (cancelled_at < '10000-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT reservation_quantity_check CHECK ((quantity > 0)),
    CONSTRAINT reservation_status_check CHECK ((status = ANY (ARRAY['ACTIVE'::text, 'CONFIRMED'::text, 'EXPIRED'::text, 'CANCELLED'::text])))
);

ALTER TABLE public.reservation ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.reservation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.settlement_chunk (
    month public.month_start NOT NULL,
    pass integer NOT NULL,
    origin_month public.month_start NOT NULL,
    low_id bigint NOT NULL,
    high_id bigint,
    state text DEFAULT 'PLANNED'::text NOT NULL,
    rows_new bigint DEFAULT 0 NOT NULL,
    rows_existing bigint DEFAULT 0 NOT NULL,
    rows_adjusted bigint DEFAULT 0 NOT NULL,
    error text,
    worker text,
    finished_at timestamp with time zone,
    organizations bigint[],
    run_id text,
    begun_at timestamp with time zone,
    CONSTRAINT settlement_chunk_check CHECK (((origin_month)::date <= (month)::date)),
    CONSTRAINT settlement_chunk_check1 CHECK ((high_id >= low_id)),
    CONSTRAINT settlement_chunk_check2 CHECK (((error IS NOT NULL) = (state = 'FAILED'::text))),
    CONSTRAINT settlement_chunk_check3 CHECK (((finished_at IS NOT NULL) = (state <> 'PLANNED'::text))),
    CONSTRAINT settlement_chunk_listed_check CHECK (((high_id IS NOT NULL) OR (organizations IS NULL))),
    CONSTRAINT settlement_chunk_state_check CHECK ((state = ANY (ARRAY['PLANNED'::text, 'DONE'::text, 'FAILED'::text])))
);

CREATE TABLE public.settlement_pass (
    month public.month_start NOT NULL,
    pass integer NOT NULL,
    cutoff_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT settlement_pass_cutoff_not_null NOT NULL,
    state text DEFAULT 'RUNNING'::text NOT NULL,
    planned_at timestamp with time zone,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    cutoff bigint CONSTRAINT settlement_pass_cutoff_not_null1 NOT NULL,
    recorded_before timestamp with time zone,
    closed_through public.month_start,
    is_full boolean DEFAULT false NOT NULL,
    given_up_because text,
    CONSTRAINT settlement_pass_check CHECK (((finished_at IS NOT NULL) = (state <> 'RUNNING'::text))),
    CONSTRAINT settlement_pass_check1 CHECK (((state = 'RUNNING'::text) OR (planned_at IS NOT NULL))),
    CONSTRAINT settlement_pass_pass_check CHECK ((pass >= 1)),
    CONSTRAINT settlement_pass_state_check CHECK ((state = ANY (ARRAY['RUNNING'::text, 'DONE'::text, 'GIVEN_UP'::text])))
);

CREATE TABLE public.settlement_period (
    month public.month_start NOT NULL,
    state text DEFAULT 'OPEN'::text NOT NULL,
    settled_at timestamp with time zone,
    settled_by text,
    closed_at timestamp with time zone,
    closed_by text,
    closed_role text,
    closed_run_id text,
    paid_at timestamp with time zone,
    stated_at timestamp with time zone,
    read_to bigint,
    CONSTRAINT settlement_period_check CHECK (((settled_at IS NOT NULL) = (state <> 'OPEN'::text))),
    CONSTRAINT settlement_period_check1 CHECK (((settled_by IS NOT NULL) = (state <> 'OPEN'::text))),
    CONSTRAINT settlement_period_check2 CHECK (((closed_at IS NOT NULL) = (state = 'CLOSED'::text))),
    CONSTRAINT settlement_period_check3 CHECK (((closed_by IS NOT NULL) = (state = 'CLOSED'::text))),
    CONSTRAINT settlement_period_check4 CHECK (((closed_role IS NOT NULL) = (state = 'CLOSED'::text))),
    CONSTRAINT settlement_period_check5 CHECK (((paid_at IS NULL) OR (state = 'CLOSED'::text))),
    CONSTRAINT settlement_period_check6 CHECK (((stated_at IS NULL) OR (state = 'CLOSED'::text))),
    CONSTRAINT settlement_period_state_check CHECK ((state = ANY (ARRAY['OPEN'::text, 'SETTLED'::text, 'CLOSING'::text, 'CLOSED'::text])))
);

CREATE TABLE public.settlement_total (
    month public.month_start NOT NULL,
    currency character(3) NOT NULL,
    organizations bigint NOT NULL,
    captures numeric NOT NULL,
    refunds numeric NOT NULL,
    chargebacks numeric NOT NULL,
    fees numeric NOT NULL,
    commission numeric NOT NULL,
    commission_tax numeric NOT NULL,
    net numeric NOT NULL
);

CREATE TABLE public.settlement_window (
    month public.month_start NOT NULL,
    timezone text NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    CONSTRAINT settlement_window_check CHECK ((ends_at > starts_at))
);

CREATE TABLE public.statement_mail (
    organization_id bigint NOT NULL,
    currency character(3) NOT NULL,
    month public.month_start NOT NULL,
    outbox_event_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE ONLY public.alert_group
    ADD CONSTRAINT alert_group_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.alert
    ADD CONSTRAINT alert_pkey PRIMARY KEY (kind, key);

ALTER TABLE ONLY public.anomaly_search
    ADD CONSTRAINT anomaly_search_pkey PRIMARY KEY (only_one);

ALTER TABLE ONLY public.bad_row
    ADD CONSTRAINT bad_row_pkey PRIMARY KEY (job, row_key);

ALTER TABLE ONLY public.currency
    ADD CONSTRAINT currency_pkey PRIMARY KEY (code);

ALTER TABLE ONLY public.data_import
    ADD CONSTRAINT data_import_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.delivery_destination
    ADD CONSTRAINT delivery_destination_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.delivery_stop
    ADD CONSTRAINT delivery_stop_pkey PRIMARY KEY (kind, name);

ALTER TABLE ONLY public.event_change
    ADD CONSTRAINT event_change_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_external_ref_key UNIQUE (external_ref);

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_public_id_key UNIQUE (public_id);

ALTER TABLE ONLY public.installation_change
    ADD CONSTRAINT installation_change_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.installation
    ADD CONSTRAINT installation_pkey PRIMARY KEY (only_one);

ALTER TABLE ONLY public.job_execution
    ADD CONSTRAINT job_execution_pkey PRIMARY KEY (job, idempotency_key);

ALTER TABLE ONLY public.job_firing
    ADD CONSTRAINT job_firing_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.late_capture
    ADD CONSTRAINT late_capture_pkey PRIMARY KEY (movement_id);

ALTER TABLE ONLY public.ledger_entry
    ADD CONSTRAINT ledger_entry_pkey PRIMARY KEY (month, organization_id, currency, origin_month, sequence);

ALTER TABLE ONLY public.mail_suppression
    ADD CONSTRAINT mail_suppression_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_external_ref_key UNIQUE (external_ref);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_reversal_target UNIQUE (id, organization_id, currency);

ALTER TABLE ONLY public.movement_anomaly
    ADD CONSTRAINT movement_anomaly_pkey PRIMARY KEY (movement_id, why);

ALTER TABLE ONLY public.opening_balance
    ADD CONSTRAINT opening_balance_organization_id_currency_key UNIQUE (organization_id, currency);

ALTER TABLE ONLY public.opening_balance
    ADD CONSTRAINT opening_balance_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.organization_balance
    ADD CONSTRAINT organization_balance_pkey PRIMARY KEY (organization_id, month, currency);

ALTER TABLE ONLY public.organization_change
    ADD CONSTRAINT organization_change_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.organization_currency
    ADD CONSTRAINT organization_currency_pkey PRIMARY KEY (organization_id, from_month, id);

ALTER TABLE ONLY public.organization
    ADD CONSTRAINT organization_external_ref_key UNIQUE (external_ref);

ALTER TABLE ONLY public.organization_left_out
    ADD CONSTRAINT organization_left_out_pkey PRIMARY KEY (month, organization_id);

ALTER TABLE ONLY public.organization
    ADD CONSTRAINT organization_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.outbox_attempt
    ADD CONSTRAINT outbox_attempt_pkey PRIMARY KEY (outbox_id, attempt);

ALTER TABLE ONLY public.outbox_event
    ADD CONSTRAINT outbox_event_dedupe_key_key UNIQUE (dedupe_key);

ALTER TABLE ONLY public.outbox_event
    ADD CONSTRAINT outbox_event_event_id_key UNIQUE (event_id);

ALTER TABLE ONLY public.outbox_event
    ADD CONSTRAINT outbox_event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.outbox_event_type
    ADD CONSTRAINT outbox_event_type_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.parked_organization
    ADD CONSTRAINT parked_organization_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.payout
    ADD CONSTRAINT payout_organization_id_currency_month_key UNIQUE (organization_id, currency, month);

ALTER TABLE ONLY public.payout
    ADD CONSTRAINT payout_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.payout
    ADD CONSTRAINT payout_public_id_key UNIQUE (public_id);

ALTER TABLE ONLY public.reminder_kind
    ADD CONSTRAINT reminder_kind_pkey PRIMARY KEY (kind);

ALTER TABLE ONLY public.reminder_lead
    ADD CONSTRAINT reminder_lead_pkey PRIMARY KEY (kind, since);

ALTER TABLE ONLY public.reminder
    ADD CONSTRAINT reminder_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.reminder
    ADD CONSTRAINT reminder_reservation_id_kind_event_date_key UNIQUE (reservation_id, kind, event_date);

ALTER TABLE ONLY public.reservation
    ADD CONSTRAINT reservation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.reservation
    ADD CONSTRAINT reservation_public_ref_key UNIQUE (public_ref);

ALTER TABLE ONLY public.settlement_chunk
    ADD CONSTRAINT settlement_chunk_pkey PRIMARY KEY (month, pass, origin_month, low_id);

ALTER TABLE ONLY public.settlement_pass
    ADD CONSTRAINT settlement_pass_pkey PRIMARY KEY (month, pass);

ALTER TABLE ONLY public.settlement_period
    ADD CONSTRAINT settlement_period_pkey PRIMARY KEY (month);

ALTER TABLE ONLY public.settlement_total
    ADD CONSTRAINT settlement_total_pkey PRIMARY KEY (month, currency);

ALTER TABLE ONLY public.settlement_window
    ADD CONSTRAINT settlement_window_pkey PRIMARY KEY (month, timezone);

ALTER TABLE ONLY public.statement_mail
    ADD CONSTRAINT statement_mail_pkey PRIMARY KEY (organization_id, currency, month);

CREATE INDEX alert_group_id_idx ON public.alert USING btree (group_id) WHERE (group_id IS NOT NULL);

CREATE UNIQUE INDEX alert_group_open_idx ON public.alert_group USING btree (kind, subject) WHERE (resolved_at IS NULL);

CREATE INDEX event_change_event_id_idx ON public.event_change USING btree (event_id);

CREATE INDEX event_change_waiting_idx ON public.event_change USING btree (id) WHERE (looked_at IS NULL);

CREATE INDEX event_open_ends_at_idx ON public.event USING btree (ends_at, id) WHERE (status = 'OPEN'::text);

CREATE INDEX event_organization_id_idx ON public.event USING btree (organization_id);

CREATE INDEX event_starts_at_idx ON public.event USING btree (starts_at, id) WHERE (status = ANY (ARRAY['OPEN'::text, 'CLOSED'::text]));

CREATE INDEX job_execution_lease_idx ON public.job_execution USING btree (lease_until) WHERE (state = 'PROCESSING'::text);

CREATE INDEX job_firing_fired_at_idx ON public.job_firing USING btree (fired_at);

CREATE INDEX job_firing_window_idx ON public.job_firing USING btree (job, scheduled_for);

CREATE INDEX ledger_entry_month_idx ON public.ledger_entry USING brin (month, origin_month) WITH (pages_per_range='32', autosummarize='on');

CREATE UNIQUE INDEX mail_suppression_address_idx ON public.mail_suppression USING btree (address, reason) WHERE (cleared_at IS NULL);

CREATE INDEX money_movement_order_idx ON public.money_movement USING brin (id, occurred_at);

CREATE INDEX money_movement_reservation_id_idx ON public.money_movement USING btree (reservation_id) WHERE (reservation_id IS NOT NULL);

CREATE INDEX money_movement_reverses_id_idx ON public.money_movement USING btree (reverses_id) WHERE (reverses_id IS NOT NULL);

CREATE INDEX money_movement_settlement_idx ON public.money_movement USING btree (organization_id, occurred_at) INCLUDE (currency, kind, amount, commission_rate_bps, commission_tax_bps, id);

CREATE UNIQUE INDEX money_movement_voided_once ON public.money_movement USING btree (reverses_id) WHERE is_void;

CREATE INDEX movement_anomaly_open_idx ON public.movement_anomaly USING btree (organization_id, currency) WHERE (latest_id >= COALESCE(accepted_to, (0)::bigint));

CREATE INDEX organization_balance_carry_idx ON public.organization_balance USING btree (organization_id, currency, month) WHERE (closing <> 0);

CREATE INDEX organization_balance_month_idx ON public.organization_balance USING brin (month) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX organization_by_currency_idx ON public.organization USING btree (currency);

CREATE INDEX organization_payouts_from_idx ON public.organization USING btree (payouts_from) WHERE (payouts_from IS NOT NULL);

CREATE INDEX organization_timezone_idx ON public.organization USING btree (timezone);

CREATE INDEX outbox_event_due_idx ON public.outbox_event USING btree (event_type, available_at, id) WHERE (ended_at IS NULL);

CREATE INDEX outbox_event_ended_idx ON public.outbox_event USING btree (ended_at) INCLUDE (event_type) WHERE (ended_at IS NOT NULL);

CREATE INDEX outbox_event_reconsider_idx ON public.outbox_event USING btree (id) WHERE (reconsider_until IS NOT NULL);

CREATE INDEX outbox_event_told_idx ON public.outbox_event USING btree (aggregate_type, aggregate_id) WHERE (ended_at IS NOT NULL);

CREATE INDEX outbox_event_waiting_idx ON public.outbox_event USING btree (aggregate_type, aggregate_id, id) WHERE (ended_at IS NULL);

CREATE UNIQUE INDEX parked_organization_by_hand ON public.parked_organization USING btree (organization_id) WHERE ((resolved_at IS NULL) AND (reason IS NOT NULL));

CREATE UNIQUE INDEX parked_organization_unresolved ON public.parked_organization USING btree (organization_id, month) WHERE ((resolved_at IS NULL) AND (error IS NOT NULL));

CREATE INDEX payout_month_idx ON public.payout USING brin (month) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX payout_provider_ref_idx ON public.payout USING btree (provider_ref) WHERE (state = 'CONFIRMED'::text);

CREATE INDEX payout_to_return_idx ON public.payout USING btree (organization_id, currency) WHERE ((state = ANY (ARRAY['REJECTED'::text, 'RETURNED'::text])) AND (returned_month IS NULL));

CREATE INDEX payout_waiting_idx ON public.payout USING btree (month, state) WHERE (state = ANY (ARRAY['HELD'::text, 'REQUESTED'::text, 'IN_DOUBT'::text]));

CREATE INDEX reservation_due_idx ON public.reservation USING btree (expires_at, id) WHERE ((status = 'ACTIVE'::text) AND (stuck_reported_at IS NULL));

CREATE INDEX reservation_event_id_idx ON public.reservation USING btree (event_id);

CREATE INDEX reservation_stuck_idx ON public.reservation USING btree (id) WHERE ((status = 'ACTIVE'::text) AND (stuck_reported_at IS NOT NULL));

CREATE INDEX reservation_to_remind_idx ON public.reservation USING btree (event_id, id) WHERE (status = 'CONFIRMED'::text);

CREATE INDEX settlement_chunk_planned_idx ON public.settlement_chunk USING btree (month, pass, origin_month, low_id) WHERE (state = 'PLANNED'::text);

CREATE UNIQUE INDEX settlement_pass_one_running ON public.settlement_pass USING btree (month) WHERE (state = 'RUNNING'::text);

CREATE TRIGGER anomaly_search_follows BEFORE UPDATE OF searched_to ON public.anomaly_search FOR EACH ROW WHEN ((old.searched_to < new.searched_to)) EXECUTE FUNCTION public.anomaly_search_guard();

CREATE TRIGGER anomaly_search_goes_on BEFORE UPDATE ON public.anomaly_search FOR EACH ROW WHEN ((old.searched_to > new.searched_to)) EXECUTE FUNCTION public.refuse('what was searched for anomalies stays searched');

CREATE TRIGGER anomaly_search_stays BEFORE DELETE OR TRUNCATE ON public.anomaly_search FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('how far was searched for anomalies is never deleted');

CREATE TRIGGER currency_fixed BEFORE UPDATE OF code, exponent ON public.currency FOR EACH ROW WHEN (((old.code IS DISTINCT FROM new.code) OR (old.exponent IS DISTINCT FROM new.exponent))) EXECUTE FUNCTION public.refuse('a currency never changes its code or exponent: every amount in it would mean another sum');

CREATE TRIGGER event_changed AFTER UPDATE OF starts_at, timezone, venue, status ON public.event FOR EACH ROW WHEN (((old.status = 'OPEN'::text) AND ((new.status = 'CANCELLED'::text) OR ((new.status = 'OPEN'::text) AND (((old.starts_at IS DISTINCT FROM new.starts_at) OR (old.timezone IS DISTINCT FROM new.timezone)) OR (old.venue IS DISTINCT FROM new.venue)))))) EXECUTE FUNCTION public.event_changed();

CREATE TRIGGER event_transition BEFORE UPDATE OF status ON public.event FOR EACH ROW WHEN (((old.status <> new.status) AND (((((old.status <> 'DRAFT'::text) OR (new.status <> 'OPEN'::text)) AND ((old.status <> 'DRAFT'::text) OR (new.status <> 'CANCELLED'::text))) AND ((old.status <> 'OPEN'::text) OR (new.status <> 'CLOSED'::text))) AND ((old.status <> 'OPEN'::text) OR (new.status <> 'CANCELLED'::text))))) EXECUTE FUNCTION public.refuse_transition('status');

CREATE TRIGGER installation_change_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.installation_change FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('changes of the installation are kept as they were');

CREATE TRIGGER installation_fixed BEFORE UPDATE OF id ON public.installation FOR EACH ROW WHEN ((old.id <> new.id)) EXECUTE FUNCTION public.refuse('an installation never changes its id: payments and events are named by it');

CREATE TRIGGER installation_kept AFTER UPDATE ON public.installation FOR EACH ROW EXECUTE FUNCTION public.installation_change_kept();

CREATE TRIGGER installation_payouts_from_judged BEFORE UPDATE OF payouts_from ON public.installation FOR EACH ROW WHEN (((old.payouts_from)::date IS DISTINCT FROM (new.payouts_from)::date)) EXECUTE FUNCTION public.payouts_from_guard();

CREATE TRIGGER installation_payouts_from_seen BEFORE UPDATE OF payouts_from ON public.installation FOR EACH ROW WHEN (((old.payouts_from)::date IS DISTINCT FROM (new.payouts_from)::date)) EXECUTE FUNCTION public.refuse_old_snapshot();

CREATE TRIGGER installation_rehearsal_fixed BEFORE UPDATE OF rehearsal ON public.installation FOR EACH ROW WHEN ((old.rehearsal <> new.rehearsal)) EXECUTE FUNCTION public.installation_rehearsal_fixed();

CREATE TRIGGER installation_stamped BEFORE UPDATE ON public.installation FOR EACH ROW EXECUTE FUNCTION public.installation_stamp();

CREATE TRIGGER installation_stays BEFORE DELETE OR TRUNCATE ON public.installation FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('the row of the installation is never deleted');

CREATE TRIGGER job_execution_transition BEFORE UPDATE OF state ON public.job_execution FOR EACH ROW WHEN (((old.state <> new.state) AND ((((old.state <> 'PROCESSING'::text) OR (new.state <> 'COMPLETED'::text)) AND ((old.state <> 'PROCESSING'::text) OR (new.state <> 'FAILED'::text))) AND ((old.state <> 'FAILED'::text) OR (new.state <> 'PROCESSING'::text))))) EXECUTE FUNCTION public.refuse_transition('state');

CREATE TRIGGER ledger_entry_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.ledger_entry FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('ledger_entry is append-only: correct it by an adjustment');

CREATE TRIGGER ledger_entry_period_open AFTER INSERT ON public.ledger_entry REFERENCING NEW TABLE AS posted FOR EACH STATEMENT EXECUTE FUNCTION public.ledger_entry_period_guard();

CREATE TRIGGER money_movement_append_only BEFORE UPDATE OR TRUNCATE ON public.money_movement FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('money_movement is append-only: mend a wrong entry by a void');

CREATE TRIGGER money_movement_kept_while_settling BEFORE DELETE ON public.money_movement FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_while_settling();

CREATE TRIGGER money_movement_late_capture AFTER INSERT ON public.money_movement FOR EACH ROW WHEN (((new.kind = 'CAPTURE'::text) AND (NOT new.is_void) AND (new.reservation_id IS NOT NULL) AND (new.import_id IS NULL))) EXECUTE FUNCTION public.money_movement_late_capture();

CREATE TRIGGER money_movement_passes_seen BEFORE DELETE ON public.money_movement FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_old_snapshot('data_import');

CREATE TRIGGER money_movement_recorded BEFORE INSERT ON public.money_movement FOR EACH ROW EXECUTE FUNCTION public.money_movement_recorded();

CREATE TRIGGER money_movement_reversal AFTER INSERT ON public.money_movement FOR EACH ROW WHEN ((new.reverses_id IS NOT NULL)) EXECUTE FUNCTION public.money_movement_matches_reversed();

CREATE TRIGGER money_movement_undo_only AFTER DELETE ON public.money_movement REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.money_movement_delete_guard();

CREATE TRIGGER opening_balance_frozen BEFORE UPDATE ON public.opening_balance FOR EACH ROW WHEN (((((old.organization_id IS DISTINCT FROM new.organization_id) OR (old.currency IS DISTINCT FROM new.currency)) OR (old.amount IS DISTINCT FROM new.amount)) OR ((old.balance_month IS NOT NULL) AND ((old.balance_month)::date IS DISTINCT FROM (new.balance_month)::date)))) EXECUTE FUNCTION public.refuse('an opening balance never changes, and is taken into one balance');

CREATE TRIGGER opening_balance_kept BEFORE TRUNCATE ON public.opening_balance FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('opening balances are deleted one by one');

CREATE TRIGGER opening_balance_taken BEFORE DELETE ON public.opening_balance FOR EACH ROW WHEN ((old.balance_month IS NOT NULL)) EXECUTE FUNCTION public.refuse('an opening balance that stands in a balance stays');

CREATE TRIGGER opening_balance_taken_in BEFORE UPDATE OF balance_month ON public.opening_balance FOR EACH ROW WHEN (((old.balance_month IS NULL) AND (new.balance_month IS NOT NULL))) EXECUTE FUNCTION public.taken_in_guard('balance_month');

CREATE TRIGGER organization_balance_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.organization_balance FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('organization_balance is append-only: a closed month never changes');

CREATE TRIGGER organization_balance_period_closing AFTER INSERT ON public.organization_balance REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION public.organization_balance_period_guard();

CREATE TRIGGER organization_change_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.organization_change FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('changes of organizations are kept as they were');

CREATE TRIGGER organization_change_kept AFTER UPDATE OF payouts_from ON public.organization FOR EACH ROW WHEN ((old.payouts_from IS DISTINCT FROM new.payouts_from)) EXECUTE FUNCTION public.organization_change_kept();

CREATE TRIGGER organization_currency_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.organization_currency FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('organization_currency is append-only: a later row about the same month counts');

CREATE TRIGGER organization_currency_not_settled AFTER INSERT ON public.organization_currency REFERENCING NEW TABLE AS decided FOR EACH STATEMENT EXECUTE FUNCTION public.organization_currency_guard();

CREATE TRIGGER organization_entries_seen BEFORE DELETE ON public.organization FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_old_snapshot('data_import');

CREATE TRIGGER organization_kept_while_settling BEFORE DELETE ON public.organization FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_while_settling();

CREATE TRIGGER organization_movements_seen BEFORE UPDATE OF timezone, currency ON public.organization FOR EACH ROW WHEN (((old.timezone IS DISTINCT FROM new.timezone) OR (old.currency IS DISTINCT FROM new.currency))) EXECUTE FUNCTION public.refuse_old_snapshot();

CREATE TRIGGER organization_never_deleted AFTER DELETE ON public.organization REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.organization_delete_guard();

CREATE TRIGGER organization_payouts_from_judged BEFORE UPDATE OF payouts_from ON public.organization FOR EACH ROW WHEN ((old.payouts_from IS DISTINCT FROM new.payouts_from)) EXECUTE FUNCTION public.payouts_from_guard();

CREATE TRIGGER organization_payouts_from_seen BEFORE UPDATE OF payouts_from ON public.organization FOR EACH ROW WHEN ((old.payouts_from IS DISTINCT FROM new.payouts_from)) EXECUTE FUNCTION public.refuse_old_snapshot();

CREATE TRIGGER organization_zone_and_currency BEFORE UPDATE OF timezone, currency ON public.organization FOR EACH ROW WHEN (((old.timezone IS DISTINCT FROM new.timezone) OR (old.currency IS DISTINCT FROM new.currency))) EXECUTE FUNCTION public.organization_guard();

CREATE TRIGGER outbox_event_announced AFTER INSERT ON public.outbox_event FOR EACH STATEMENT EXECUTE FUNCTION public.outbox_event_announce();

CREATE TRIGGER outbox_event_body_frozen AFTER UPDATE OF body ON public.outbox_event FOR EACH ROW WHEN (((old.body IS NOT NULL) AND (old.body IS DISTINCT FROM new.body) AND ((old.doubtful_since IS NOT NULL) OR (old.state = ANY (ARRAY['DELIVERED'::text, 'IN_DOUBT'::text]))))) EXECUTE FUNCTION public.refuse('an outbox event never changes the bytes that somebody may have');

CREATE TRIGGER outbox_event_derived AFTER INSERT ON public.outbox_event REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION public.outbox_event_names_guard();

CREATE TRIGGER outbox_event_ends_now AFTER UPDATE OF ended_at ON public.outbox_event FOR EACH ROW WHEN (((new.ended_at < (clock_timestamp() - '1 day'::interval)) AND (old.ended_at IS DISTINCT FROM new.ended_at))) EXECUTE FUNCTION public.outbox_event_end_guard();

CREATE TRIGGER outbox_event_frozen AFTER UPDATE OF event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at ON public.outbox_event FOR EACH ROW WHEN ((((((((old.event_id IS DISTINCT FROM new.event_id) OR (old.aggregate_type IS DISTINCT FROM new.aggregate_type)) OR (old.aggregate_id IS DISTINCT FROM new.aggregate_id)) OR (old.event_type IS DISTINCT FROM new.event_type)) OR (old.payload IS DISTINCT FROM new.payload)) OR (old.dedupe_key IS DISTINCT FROM new.dedupe_key)) OR (old.occurred_at IS DISTINCT FROM new.occurred_at))) EXECUTE FUNCTION public.refuse('an outbox event never changes its id, aggregate, type, payload, key or instant');

CREATE TRIGGER outbox_event_may_be_told AFTER INSERT ON public.outbox_event REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.outbox_event_guard();

CREATE TRIGGER outbox_event_named BEFORE INSERT ON public.outbox_event FOR EACH ROW WHEN ((new.event_id IS NULL)) EXECUTE FUNCTION public.outbox_event_named();

CREATE TRIGGER outbox_event_payout_held AFTER UPDATE OF state ON public.outbox_event FOR EACH ROW WHEN (((old.state = 'HELD'::text) AND (new.state = 'PENDING'::text) AND (new.event_type = 'PayoutRequested'::text))) EXECUTE FUNCTION public.payout_held_guard();

CREATE TRIGGER outbox_event_transition AFTER UPDATE OF state ON public.outbox_event FOR EACH ROW WHEN (((old.state <> new.state) AND (((old.state = 'SUPPRESSED'::text) AND (new.event_type = 'PayoutRequested'::text)) OR (((((((((((((((((((((old.state <> 'PENDING'::text) OR (new.state <> 'INFLIGHT'::text)) AND ((old.state <> 'INFLIGHT'::text) OR (new.state <> 'DELIVERED'::text))) AND ((old.state <> 'INFLIGHT'::text) OR (new.state <> 'PENDING'::text))) AND ((old.state <> 'INFLIGHT'::text) OR (new.state <> 'DEAD'::text))) AND ((old.state <> 'INFLIGHT'::text) OR (new.state <> 'IN_DOUBT'::text))) AND ((old.state <> 'INFLIGHT'::text) OR (new.state <> 'SUPPRESSED'::text))) AND ((old.state <> 'INFLIGHT'::text) OR (new.state <> 'HELD'::text))) AND ((old.state <> 'PENDING'::text) OR (new.state <> 'HELD'::text))) AND ((old.state <> 'PENDING'::text) OR (new.state <> 'SUPPRESSED'::text))) AND ((old.state <> 'PENDING'::text) OR (new.state <> 'DEAD'::text))) AND ((old.state <> 'DEAD'::text) OR (new.state <> 'PENDING'::text))) AND ((old.state <> 'DEAD'::text) OR (new.state <> 'DELIVERED'::text))) AND ((old.state <> 'DEAD'::text) OR (new.state <> 'SUPPRESSED'::text))) AND ((old.state <> 'HELD'::text) OR (new.state <> 'PENDING'::text))) AND ((old.state <> 'HELD'::text) OR (new.state <> 'SUPPRESSED'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'PENDING'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'DELIVERED'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'DEAD'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'SUPPRESSED'::text))) AND ((old.state <> 'SUPPRESSED'::text) OR (new.state <> 'PENDING'::text)))))) EXECUTE FUNCTION public.refuse_transition('state');

CREATE TRIGGER payout_derived AFTER INSERT ON public.payout REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION public.payout_names_guard();

CREATE TRIGGER payout_frozen BEFORE UPDATE ON public.payout FOR EACH ROW WHEN (((((((old.public_id IS DISTINCT FROM new.public_id) OR (old.organization_id IS DISTINCT FROM new.organization_id)) OR (old.currency IS DISTINCT FROM new.currency)) OR ((old.month)::date IS DISTINCT FROM (new.month)::date)) OR (old.amount IS DISTINCT FROM new.amount)) OR ((old.returned_month IS NOT NULL) AND ((old.returned_month)::date IS DISTINCT FROM (new.returned_month)::date)))) EXECUTE FUNCTION public.refuse('a payout never changes whose it is, its month or its amount, and returns once');

CREATE TRIGGER payout_kept BEFORE DELETE OR TRUNCATE ON public.payout FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('payouts are never deleted');

CREATE TRIGGER payout_named BEFORE INSERT ON public.payout FOR EACH ROW WHEN ((new.public_id IS NULL)) EXECUTE FUNCTION public.payout_named();

CREATE TRIGGER payout_pays_a_balance AFTER INSERT ON public.payout REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION public.payout_balance_guard();

CREATE TRIGGER payout_taken_in BEFORE UPDATE OF returned_month ON public.payout FOR EACH ROW WHEN (((old.returned_month IS NULL) AND (new.returned_month IS NOT NULL))) EXECUTE FUNCTION public.taken_in_guard('returned_month');

CREATE TRIGGER payout_transition BEFORE UPDATE OF state ON public.payout FOR EACH ROW WHEN (((old.state <> new.state) AND (((((((((((old.state <> 'HELD'::text) OR (new.state <> 'REQUESTED'::text)) AND ((old.state <> 'HELD'::text) OR (new.state <> 'REJECTED'::text))) AND ((old.state <> 'REQUESTED'::text) OR (new.state <> 'HELD'::text))) AND ((old.state <> 'REQUESTED'::text) OR (new.state <> 'CONFIRMED'::text))) AND ((old.state <> 'REQUESTED'::text) OR (new.state <> 'REJECTED'::text))) AND ((old.state <> 'REQUESTED'::text) OR (new.state <> 'IN_DOUBT'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'CONFIRMED'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'REJECTED'::text))) AND ((old.state <> 'IN_DOUBT'::text) OR (new.state <> 'REQUESTED'::text))) AND ((old.state <> 'CONFIRMED'::text) OR (new.state <> 'RETURNED'::text))))) EXECUTE FUNCTION public.refuse_transition('state');

CREATE TRIGGER reservation_cancelled BEFORE UPDATE OF status ON public.reservation FOR EACH ROW WHEN (((new.status = 'CANCELLED'::text) AND (old.status <> 'CANCELLED'::text) AND (new.cancelled_at IS NULL))) EXECUTE FUNCTION public.reservation_cancelled();

CREATE TRIGGER reservation_event_is_open BEFORE INSERT ON public.reservation FOR EACH ROW WHEN (((new.import_id IS NULL) OR (new.status = 'ACTIVE'::text))) EXECUTE FUNCTION public.reservation_needs_open_event();

CREATE TRIGGER reservation_moves_to_open_event BEFORE UPDATE OF event_id ON public.reservation FOR EACH ROW WHEN ((old.event_id <> new.event_id)) EXECUTE FUNCTION public.reservation_needs_open_event();

CREATE TRIGGER reservation_payment_resolved AFTER UPDATE OF status, payment_started_at, stuck_reported_at ON public.reservation FOR EACH ROW WHEN (((old.stuck_reported_at IS NOT NULL) AND (new.stuck_reported_at IS NULL))) EXECUTE FUNCTION public.reservation_payment_resolved();

CREATE TRIGGER reservation_report_ends BEFORE UPDATE OF status, payment_started_at ON public.reservation FOR EACH ROW WHEN (((old.stuck_reported_at IS NOT NULL) AND ((new.status <> 'ACTIVE'::text) OR (new.payment_started_at IS DISTINCT FROM old.payment_started_at)))) EXECUTE FUNCTION public.reservation_report_ends();

CREATE TRIGGER reservation_transition BEFORE UPDATE OF status ON public.reservation FOR EACH ROW WHEN (((old.status <> new.status) AND (((((old.status <> 'ACTIVE'::text) OR (new.status <> 'CONFIRMED'::text)) AND ((old.status <> 'ACTIVE'::text) OR (new.status <> 'EXPIRED'::text))) AND ((old.status <> 'ACTIVE'::text) OR (new.status <> 'CANCELLED'::text))) AND ((old.status <> 'CONFIRMED'::text) OR (new.status <> 'CANCELLED'::text))))) EXECUTE FUNCTION public.refuse_transition('status');

CREATE TRIGGER settlement_chunk_transition BEFORE UPDATE OF state ON public.settlement_chunk FOR EACH ROW WHEN (((old.state <> new.state) AND (old.state <> 'PLANNED'::text))) EXECUTE FUNCTION public.refuse_transition('state');

CREATE TRIGGER settlement_pass_frozen BEFORE UPDATE ON public.settlement_pass FOR EACH ROW WHEN ((((((((old.month)::date IS DISTINCT FROM (new.month)::date) OR (old.pass IS DISTINCT FROM new.pass)) OR (old.cutoff IS DISTINCT FROM new.cutoff)) OR (old.cutoff_at IS DISTINCT FROM new.cutoff_at)) OR (old.recorded_before IS DISTINCT FROM new.recorded_before)) OR (old.is_full IS DISTINCT FROM new.is_full))) EXECUTE FUNCTION public.refuse('a settlement pass never changes its month, number or cutoff');

CREATE TRIGGER settlement_pass_transition BEFORE UPDATE OF state ON public.settlement_pass FOR EACH ROW WHEN (((old.state <> new.state) AND (((old.state <> 'RUNNING'::text) OR (new.state <> 'DONE'::text)) AND ((old.state <> 'RUNNING'::text) OR (new.state <> 'GIVEN_UP'::text))))) EXECUTE FUNCTION public.refuse_transition('state');

CREATE TRIGGER settlement_period_balanced BEFORE UPDATE OF state ON public.settlement_period FOR EACH ROW WHEN (((old.state = 'CLOSING'::text) AND (new.state = 'SETTLED'::text))) EXECUTE FUNCTION public.settlement_period_balance_guard();

CREATE TRIGGER settlement_period_balanced_seen BEFORE UPDATE OF state ON public.settlement_period FOR EACH ROW WHEN (((old.state = 'CLOSING'::text) AND (new.state = 'SETTLED'::text))) EXECUTE FUNCTION public.refuse_old_snapshot();

CREATE TRIGGER settlement_period_closed_for_good BEFORE UPDATE ON public.settlement_period FOR EACH ROW WHEN (((old.state = 'CLOSED'::text) AND (new.state = 'CLOSED'::text) AND ((((((((old.month)::date IS DISTINCT FROM (new.month)::date) OR (old.settled_at IS DISTINCT FROM new.settled_at)) OR (old.settled_by IS DISTINCT FROM new.settled_by)) OR (old.closed_at IS DISTINCT FROM new.closed_at)) OR (old.closed_by IS DISTINCT FROM new.closed_by)) OR (old.closed_role IS DISTINCT FROM new.closed_role)) OR (old.closed_run_id IS DISTINCT FROM new.closed_run_id)))) EXECUTE FUNCTION public.refuse('who settled and closed a month, and when, stays as it was written');

CREATE TRIGGER settlement_period_kept BEFORE DELETE ON public.settlement_period FOR EACH ROW WHEN ((old.state <> 'OPEN'::text)) EXECUTE FUNCTION public.refuse('a settlement period that is settled or closed stays so');

CREATE TRIGGER settlement_period_not_truncated BEFORE TRUNCATE ON public.settlement_period FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('a settlement period that is settled or closed stays so');

CREATE TRIGGER settlement_period_of_its_month BEFORE UPDATE OF month ON public.settlement_period FOR EACH ROW WHEN (((old.month)::date <> (new.month)::date)) EXECUTE FUNCTION public.refuse('a settlement period is of one month for good');

CREATE TRIGGER settlement_period_read_on BEFORE UPDATE OF read_to ON public.settlement_period FOR EACH ROW WHEN (((old.read_to > new.read_to) OR ((old.read_to IS NOT NULL) AND (new.read_to IS NULL)))) EXECUTE FUNCTION public.refuse('what a settlement has read stays read');

CREATE TRIGGER settlement_period_transition BEFORE UPDATE OF state ON public.settlement_period FOR EACH ROW WHEN (((old.state <> new.state) AND (((((old.state <> 'OPEN'::text) OR (new.state <> 'SETTLED'::text)) AND ((old.state <> 'SETTLED'::text) OR (new.state <> 'CLOSING'::text))) AND ((old.state <> 'CLOSING'::text) OR (new.state <> 'SETTLED'::text))) AND ((old.state <> 'CLOSING'::text) OR (new.state <> 'CLOSED'::text))))) EXECUTE FUNCTION public.refuse_transition('state');

CREATE TRIGGER settlement_window_fixed BEFORE DELETE OR UPDATE OR TRUNCATE ON public.settlement_window FOR EACH STATEMENT EXECUTE FUNCTION public.refuse('settlement_window is fixed once a month is planned');

CREATE TRIGGER settlement_window_meets AFTER INSERT ON public.settlement_window REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION public.settlement_window_guard();

ALTER TABLE ONLY public.alert
    ADD CONSTRAINT alert_group_id_fkey FOREIGN KEY (group_id) REFERENCES public.alert_group(id);

ALTER TABLE ONLY public.event_change
    ADD CONSTRAINT event_change_event_id_fkey FOREIGN KEY (event_id) REFERENCES public.event(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_import_id_fkey FOREIGN KEY (import_id) REFERENCES public.data_import(id);

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_import_id_fkey FOREIGN KEY (import_id) REFERENCES public.data_import(id);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_reservation_id_fkey FOREIGN KEY (reservation_id) REFERENCES public.reservation(id);

ALTER TABLE ONLY public.money_movement
    ADD CONSTRAINT money_movement_reverses_fkey FOREIGN KEY (reverses_id, organization_id, currency) REFERENCES public.money_movement(id, organization_id, currency);

ALTER TABLE ONLY public.opening_balance
    ADD CONSTRAINT opening_balance_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.opening_balance
    ADD CONSTRAINT opening_balance_import_id_fkey FOREIGN KEY (import_id) REFERENCES public.data_import(id);

ALTER TABLE ONLY public.opening_balance
    ADD CONSTRAINT opening_balance_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.organization_currency
    ADD CONSTRAINT organization_currency_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.organization
    ADD CONSTRAINT organization_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.organization_currency
    ADD CONSTRAINT organization_currency_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.organization
    ADD CONSTRAINT organization_import_id_fkey FOREIGN KEY (import_id) REFERENCES public.data_import(id);

ALTER TABLE ONLY public.organization_left_out
    ADD CONSTRAINT organization_left_out_month_fkey FOREIGN KEY (month) REFERENCES public.settlement_period(month);

ALTER TABLE ONLY public.organization_left_out
    ADD CONSTRAINT organization_left_out_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.parked_organization
    ADD CONSTRAINT parked_organization_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.payout
    ADD CONSTRAINT payout_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.payout
    ADD CONSTRAINT payout_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);

ALTER TABLE ONLY public.reminder
    ADD CONSTRAINT reminder_reservation_id_fkey FOREIGN KEY (reservation_id) REFERENCES public.reservation(id);

ALTER TABLE ONLY public.reservation
    ADD CONSTRAINT reservation_event_id_fkey FOREIGN KEY (event_id) REFERENCES public.event(id);

ALTER TABLE ONLY public.reservation
    ADD CONSTRAINT reservation_import_id_fkey FOREIGN KEY (import_id) REFERENCES public.data_import(id);

ALTER TABLE ONLY public.settlement_chunk
    ADD CONSTRAINT settlement_chunk_month_pass_fkey FOREIGN KEY (month, pass) REFERENCES public.settlement_pass(month, pass);

ALTER TABLE ONLY public.settlement_pass
    ADD CONSTRAINT settlement_pass_month_fkey FOREIGN KEY (month) REFERENCES public.settlement_period(month);

ALTER TABLE ONLY public.settlement_total
    ADD CONSTRAINT settlement_total_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.settlement_total
    ADD CONSTRAINT settlement_total_month_fkey FOREIGN KEY (month) REFERENCES public.settlement_period(month);

ALTER TABLE ONLY public.statement_mail
    ADD CONSTRAINT statement_mail_currency_fkey FOREIGN KEY (currency) REFERENCES public.currency(code);

ALTER TABLE ONLY public.statement_mail
    ADD CONSTRAINT statement_mail_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organization(id);
