-- name: end_closing
-- Who closed the month is what was declared, and the role that the session is in beside the one that logged in.
UPDATE settlement_period SET state = 'CLOSED', closed_at = clock_timestamp(), closed_by = %(by)s,
    closed_run_id = %(run_id)s, closed_role = CASE
        WHEN session_user = current_user THEN session_user::text
        ELSE session_user || ' as ' || current_user
    END
WHERE month = %(month)s;


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
