"""Whether periods, passes, windows, entries, totals and balances fit together, as questions to the database."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, findings
from ticketflow_orch.months import Month
from ticketflow_orch.periods.zones import zones_in_use
from ticketflow_orch.settlement.checks import EVERYBODY, Finding, rounding_residue
from ticketflow_orch.settlement.posting import LARGEST_ID

# The organizations of a table that are asked about, and how they are named where nobody knows them.
_MEMBERS = "BETWEEN %(low)s::bigint AND %(high)s::bigint"


def entries_in_unknown_months(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Months in which something is posted although no settlement ever began."""
    yield from findings(connection, _UNKNOWN_MONTHS, asked.parameters())


def misplaced_entries(connection: Connection, month: Month, asked: Asked) -> Finding:
    """Entries of `month` about a later one, and keys whose entries are not numbered from 0 without a gap."""
    return _of_month(connection, month, asked, _MISPLACED)


def of_nobody(connection: Connection, month: Month, asked: Asked) -> Finding:
    """Entries and balances of `month` of an organization or in a currency that does not exist."""
    return _of_month(connection, month, asked, _OF_NOBODY)


def wrong_totals(connection: Connection, month: Month, asked: Asked) -> Finding:
    """Currencies whose totals of `month` are not what was posted in it up to its last finished pass, by everybody."""
    if asked.members != EVERYBODY:
        return Finding(month, 0, ())
    return _of_month(connection, month, asked, _WRONG_TOTALS)


def misplaced_balances(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Balances of months that are neither closed nor being closed, and opening balances taken into none."""
    yield from findings(connection, _MISPLACED_BALANCES, asked.parameters())


def closed_out_of_order(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Months before the last closed one that are not closed, from the first period on."""
    yield from findings(connection, _OUT_OF_ORDER, asked.parameters())


def inconsistent_passes(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Passes, and what periods say was read, that no run can have left so."""
    yield from findings(connection, _INCONSISTENT_PASSES, asked.parameters())


def windows_apart(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Zones in which a month does not begin where the one before ended: movements there lie in two months or none."""
    yield from findings(connection, _WINDOWS_APART, asked.parameters())


def movements_before_the_first_month(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Movements that no settlement will ever read: before the first month, and not taken in as late ones either."""
    zones = zones_in_use(connection)
    starts = [asked.first_month.window(name).starts_at for name in zones]
    if zones:
        bounds = {"timezones": zones, "starts": starts, "latest": max(starts)}
        yield from findings(connection, _BEFORE_THE_FIRST_MONTH, asked.parameters() | bounds)


def residue(connection: Connection, month: Month, asked: Asked) -> Finding:
    """By how much the rounded commission and tax of `month` differ from the exact ones, by currency."""
    found = rounding_residue(connection, month, asked.members)
    rows = [(currency, amount) for currency, amount in sorted(found.items()) if amount != "0"]
    return Finding.listed(month, [("", currency, f"{amount} minor units") for currency, amount in rows])


def _of_month(connection: Connection, month: Month, asked: Asked, bad: str) -> Finding:
    parameters = asked.parameters() | {"month": month.first_day}
    return next(findings(connection, bad, parameters), Finding(month, 0, ()))


def read_months(connection: Connection) -> tuple[Month, ...]:
    """Every month with a period, in order."""
    days = connection.exec_driver_sql("SELECT month FROM settlement_period ORDER BY month").scalars()
    return tuple(map(Month.of_day, days))


# By one index probe a month.
_UNKNOWN_MONTHS = """
    WITH RECURSIVE posted (month) AS (
        (SELECT CAST(month AS date) FROM ledger_entry ORDER BY month LIMIT 1)
        UNION ALL
        SELECT (SELECT CAST(month AS date) FROM ledger_entry WHERE month > posted.month ORDER BY month LIMIT 1)
        FROM posted WHERE month IS NOT NULL
    )
    SELECT CAST(posted.month AS date), '', '', 'holds entries, and no settlement of it ever began'
    FROM posted LEFT JOIN settlement_period USING (month)
    WHERE posted.month IS NOT NULL AND state IS NULL
"""

_MISPLACED = f"""
    SELECT %(month)s::date, coalesce(external_ref, 'id ' || organization_id), misplaced.currency,
        CASE WHEN origin_month > %(month)s::date
            THEN 'has entries about ' || to_char(origin_month, 'YYYY-MM') || ', which is later'
            ELSE entries || ' entries about ' || to_char(origin_month, 'YYYY-MM') || ' are numbered from '
                || first || ' to ' || last
        END
    FROM (
        SELECT organization_id, currency, origin_month::date AS origin_month, min(sequence) AS first,
            max(sequence) AS last, count(*) AS entries
        FROM ledger_entry
        WHERE month = %(month)s::date AND organization_id {_MEMBERS}
        GROUP BY organization_id, currency, origin_month
        HAVING min(sequence) <> 0 OR max(sequence) + 1 <> count(*) OR origin_month > %(month)s::date
    ) AS misplaced LEFT JOIN organization ON organization.id = organization_id
"""

_OF_NOBODY = f"""
    SELECT %(month)s::date, 'id ' || organization_id, written.currency, where_found || CASE
            WHEN NOT EXISTS (SELECT FROM organization WHERE id = organization_id)
                THEN ' of an organization that does not exist'
            ELSE ' in a currency that does not exist'
        END
    FROM (
        SELECT organization_id, currency, 'entries' AS where_found FROM ledger_entry WHERE month = %(month)s::date
        UNION
        SELECT organization_id, currency, 'a balance' FROM organization_balance WHERE month = %(month)s::date
    ) AS written
    WHERE organization_id {_MEMBERS} AND (
        NOT EXISTS (SELECT FROM organization WHERE id = organization_id)
        OR NOT EXISTS (SELECT FROM currency WHERE code = written.currency))
"""

# A pass that was given up may have posted since; the next one that is done writes its entries into the totals.
_WRONG_TOTALS = """
    WITH done AS (
        SELECT max(pass) AS pass FROM settlement_pass WHERE month = %(month)s::date AND state = 'DONE'
    ), posted AS (
        SELECT currency, count(*) FILTER (WHERE origin_month = month AND sequence = 0) AS organizations,
            sum(captures) AS captures, sum(refunds) AS refunds, sum(chargebacks) AS chargebacks, sum(fees) AS fees,
            sum(commission) AS commission, sum(commission_tax) AS commission_tax, sum(net) AS net
        FROM ledger_entry, done
        WHERE month = %(month)s::date AND settlement_pass <= done.pass
        GROUP BY currency
    ), total AS (
        SELECT currency, organizations, captures, refunds, chargebacks, fees, commission, commission_tax, net
        FROM settlement_total WHERE month = %(month)s::date
    )
    SELECT %(month)s::date, '', currency, 'the total is ' || coalesce(total.net::text, 'missing')
        || ' net of ' || coalesce(total.organizations, 0) || ' organizations, the entries come to '
        || coalesce(posted.net, 0) || ' of ' || coalesce(posted.organizations, 0)
    FROM total FULL JOIN posted USING (currency), done
    WHERE done.pass IS NOT NULL AND (
        total.organizations, total.captures, total.refunds, total.chargebacks, total.fees, total.commission,
        total.commission_tax, total.net
    ) IS DISTINCT FROM (
        posted.organizations, posted.captures, posted.refunds, posted.chargebacks, posted.fees, posted.commission,
        posted.commission_tax, posted.net)
"""

_MISPLACED_BALANCES = f"""
    SELECT CAST(balance.month AS date), coalesce(external_ref, 'id ' || organization_id), balance.currency,
        'has a balance of ' || closing || ', and the month is ' || coalesce(state, 'never settled')
    FROM organization_balance AS balance
    LEFT JOIN settlement_period AS period ON period.month = balance.month
    LEFT JOIN organization ON organization.id = organization_id
    WHERE organization_id {_MEMBERS} AND coalesce(state, 'OPEN') NOT IN ('CLOSING', 'CLOSED')
    UNION ALL
    SELECT CAST(balance_month AS date), external_ref, opening.currency,
        'has an opening balance of ' || amount || ' that counts as taken in, and no balance'
    FROM opening_balance AS opening JOIN organization ON organization.id = organization_id
    WHERE organization_id {_MEMBERS} AND balance_month IS NOT NULL AND NOT EXISTS (
        SELECT FROM organization_balance AS balance
        WHERE balance.organization_id = opening.organization_id AND balance.month = opening.balance_month
            AND balance.currency = opening.currency)
"""

_OUT_OF_ORDER = """
    WITH known AS (
        SELECT min(month) AS first, max(month) FILTER (WHERE state = 'CLOSED') AS last_closed FROM settlement_period
    )
    SELECT CAST(day AS date), '', '', 'is ' || coalesce(state, 'not settled') || ', and '
        || to_char(last_closed, 'YYYY-MM') || ' is closed'
    FROM known CROSS JOIN LATERAL generate_series(
        CAST(first AS timestamp), CAST(last_closed AS timestamp), interval '1 month') AS day
    LEFT JOIN settlement_period AS period ON period.month = CAST(day AS date)
    WHERE state IS DISTINCT FROM 'CLOSED'
"""

# Of a pass from when cutoffs were instants less counts as read than it had read, since clocks may have been wrong.
_INCONSISTENT_PASSES = """
    SELECT CAST(month AS date), 'pass ' || pass, '', 'is RUNNING in a month that is ' || period.state
    FROM settlement_pass JOIN settlement_period AS period USING (month)
    WHERE settlement_pass.state = 'RUNNING' AND period.state IN ('CLOSING', 'CLOSED')
    UNION ALL
    SELECT CAST(month AS date), 'pass ' || pass, '',
        'is ' || settlement_pass.state || ' with ' || count(*) || ' chunks that nobody has worked on'
    FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
    WHERE settlement_pass.state <> 'RUNNING' AND chunk.state = 'PLANNED'
    GROUP BY month, pass, settlement_pass.state
    UNION ALL
    SELECT CAST(month AS date), '', '', 'is ' || state || ' and says nothing of what was read of it'
    FROM settlement_period WHERE state <> 'OPEN' AND read_to IS NULL
    UNION ALL
    SELECT CAST(month AS date), '', '', 'was read to ' || read_to || ', which is the cutoff of no pass that is done'
    FROM settlement_period AS period
    WHERE read_to IS NOT NULL AND NOT EXISTS (
        SELECT FROM settlement_pass WHERE settlement_pass.state = 'DONE'
            AND (cutoff = read_to OR (cutoff > read_to AND recorded_before IS NOT NULL))
            AND (settlement_pass.month = period.month OR closed_through >= period.month))
"""

_WINDOWS_APART = """
    SELECT CAST(later.month AS date), later.timezone, '', 'begins at ' || to_char(later.starts_at, 'YYYY-MM-DD HH24:MI')
        || ', and the month before ends at ' || to_char(earlier.ends_at, 'YYYY-MM-DD HH24:MI') || ' UTC'
    FROM settlement_window AS later
    JOIN settlement_window AS earlier ON earlier.timezone = later.timezone
        AND earlier.month = CAST(later.month - interval '1 month' AS date)
    WHERE later.starts_at <> earlier.ends_at
"""

# A month whose windows are fixed was looked at, be it for what came late: whether that was read, the ledger tells. In
# others nothing is read before the first month is closed, and from then on only what comes late.
_BEFORE_THE_FIRST_MONTH = f"""
    SELECT NULL::date, organization.external_ref, early.currency,
        early.external_ref || ' of ' || to_char(occurred_at, 'YYYY-MM-DD HH24:MI') || ' UTC over ' || amount
    FROM money_movement AS early
    JOIN organization ON organization.id = organization_id
    JOIN unnest(%(timezones)s::text[], %(starts)s::timestamptz[]) AS zone_start (timezone, starts_at)
        USING (timezone)
    WHERE organization_id {_MEMBERS} AND occurred_at < %(latest)s::timestamptz AND occurred_at < starts_at
        AND NOT EXISTS (
            SELECT FROM settlement_window AS cut
            WHERE cut.timezone = organization.timezone AND occurred_at >= cut.starts_at AND occurred_at < cut.ends_at)
        AND early.id < coalesce((
            SELECT read_to FROM settlement_period WHERE state = 'CLOSED' ORDER BY month LIMIT 1), {LARGEST_ID})
"""
