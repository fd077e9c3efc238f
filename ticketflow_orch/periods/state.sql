-- name: end_closing
-- Who closed the month is what was declared, and the role that the session is in beside the one that logged in.
UPDATE settlement_period SET state = 'CLOSED', closed_at = clock_timestamp(), closed_by = %(by)s,
    closed_run_id = %(run_id)s, closed_role = CASE
        WHEN session_user = current_user THEN session_user::text
        ELSE session_user || ' as ' || current_user
    END
WHERE month = %(month)s;


-- name: mark_paid
-- Only a closed month that is not noted as paid, of whose row `period` nothing stands in the way.
UPDATE settlement_period AS period SET paid_at = clock_timestamp()
WHERE month = %(month)s::date AND state = 'CLOSED' AND paid_at IS NULL AND {is_paid};


-- name: mark_unpaid
-- Closed months that were noted as paid, of whose row `period` something is owed again.
UPDATE settlement_period AS period SET paid_at = NULL
WHERE state = 'CLOSED' AND paid_at IS NOT NULL AND {is_owed};


-- name: periods
-- How far each month is that a settlement has touched.
SELECT month, state, settled_at, closed_at, paid_at, stated_at, read_to FROM settlement_period;


-- name: closed_months
-- The months whose books are closed.
SELECT month FROM settlement_period WHERE state = 'CLOSED';


-- name: closing_month
-- The month whose closing has begun and has not ended; there is one at most.
SELECT month FROM settlement_period WHERE state = 'CLOSING';


-- name: frozen_months
-- The months into which nothing is posted any more.
SELECT month FROM settlement_period WHERE state IN ('CLOSING', 'CLOSED');


-- name: ledger_months
-- The months that the ledger may have entries of: the guard of postings knows no others. The ledger's key begins with
-- the month, so that it is searched once for each of these, whatever the organization.
SELECT month FROM settlement_period;


-- name: read_months
-- The months of which a pass has finished, and the movement id below which all that is about them was read.
SELECT month, read_to FROM settlement_period WHERE read_to IS NOT NULL;
