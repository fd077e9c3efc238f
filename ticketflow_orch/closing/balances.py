"""What organizations are owed in a month that is being closed: written in chunks, in key order, each key once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.closing.history import moved, pays_from
from ticketflow_orch.closing.periods import IncompleteClosingError, is_being_closed
from ticketflow_orch.db.engine import is_data_fault, transaction
from ticketflow_orch.db.errors import in_words
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.chunking import cut
from ticketflow_orch.settlement.posting import LARGEST_ID


@dataclass
class BalanceWriter:
    """Writes the balances of `month`; parks organizations whose own data makes that fail, `parked_limit` at most."""

    engine: Engine
    month: Month
    parked_limit: int
    _parked: list[int] = field(default_factory=list)

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """The ranges of organization ids, of `size` organizations each; the last is open-ended."""

        def ranges() -> list[tuple[int, int | None]]:
            with self.engine.connect() as connection:
                return list(cut(connection, size))

        for low, high in retried(self.engine, ranges):
            yield low, LARGEST_ID if high is None else high

    def write(self, low: int, high: int) -> int:
        """Write what is missing for the organizations from `low` to `high`, in one transaction; how many balances.

        Tried again while the database is away: a balance that is there is left as it is.

        Raises:
            IncompleteClosingError: the month is not being closed any more, or too many organizations fail.
        """
        try:
            return retried(self.engine, lambda: self._write(low, high))
        except DBAPIError as error:
            if not is_data_fault(error):
                raise
            return self._narrow_down(low, high, in_words(error))

    def _write(self, low: int, high: int) -> int:
        with transaction(self.engine) as connection:
            # Whoever else closes the month waits here, and then sees what we have written.
            if not is_being_closed(connection, self.month):
                return 0
            keys = {"month": self.month.first_day, "low": low, "high": high}
            return connection.execute(_WRITE, keys).rowcount

    def _narrow_down(self, low: int, high: int, error: str) -> int:
        with self.engine.connect() as connection:
            ids = connection.execute(
                text("SELECT id FROM organization WHERE id BETWEEN :low AND :high ORDER BY id"),
                {"low": low, "high": high},
            ).scalars()
            organizations: Sequence[int] = ids.all()
        if len(organizations) > 1:
            middle = organizations[len(organizations) // 2]
            return self.write(low, middle - 1) + self.write(middle, high)
        self._park(organizations[0], error)
        return 0

    def _park(self, organization: int, error: str) -> None:
        with transaction(self.engine) as connection:
            key = {"organization_id": organization, "month": self.month.first_day, "error": error}
            if len(self._parked) >= self.parked_limit:
                name = connection.execute(
                    text("SELECT external_ref FROM organization WHERE id = :organization_id"), key
                ).scalar_one()
                raise IncompleteClosingError(
                    f"The balances of {len(self._parked)} organizations in {self.month} cannot be written, and that of "
                    f"{name} cannot either ({error}); raise TICKETFLOW_PARKED_LIMIT, then close the month again."
                )
            connection.execute(_PARK, key)
        self._parked.append(organization)


# An organization takes part with all its keys or with none, so its latest balance of any key tells up to where all its
# entries are in balances, and a key that carries an amount has one of that month. What comes back and what is brought
# along is marked by the statement that counts it; an opening balance that was entered while a month was being closed is
# brought along in the next. The ledger is found by month first, so periods are joined one by one. Months before the one
# from which an organization is paid are history; what earlier balances took in is looked at where that has changed.
_WRITE = text(f"""
    WITH member AS MATERIALIZED (
        SELECT organization.id AS organization_id, CAST(last.month AS date) AS last_month,
            {pays_from()} AS pays_from,
            last.knows_history AND last.payouts_from IS DISTINCT FROM {pays_from()} AS is_moved
        FROM organization LEFT JOIN LATERAL (
            SELECT month, payouts_from, knows_history FROM organization_balance AS before
            WHERE before.organization_id = organization.id AND before.month < CAST(:month AS date)
            ORDER BY before.month DESC LIMIT 1
        ) AS last ON true
        WHERE organization.id BETWEEN CAST(:low AS bigint) AND CAST(:high AS bigint)
            AND NOT EXISTS (
                SELECT FROM organization_balance AS there
                WHERE there.organization_id = organization.id AND there.month = CAST(:month AS date))
            AND NOT EXISTS (
                SELECT FROM parked_organization AS parked
                WHERE parked.organization_id = organization.id AND parked.month <= CAST(:month AS date)
                    AND resolved_at IS NULL)
    ), came_back AS (
        UPDATE payout SET returned_month = CAST(:month AS date)
        FROM member
        WHERE payout.organization_id = member.organization_id AND payout.state IN ('REJECTED', 'RETURNED')
            AND payout.returned_month IS NULL AND payout.month < CAST(:month AS date)
        RETURNING payout.organization_id, payout.currency, payout.amount
    ), brought_along AS (
        UPDATE opening_balance SET balance_month = CAST(:month AS date)
        FROM member
        WHERE opening_balance.organization_id = member.organization_id AND opening_balance.balance_month IS NULL
        RETURNING opening_balance.organization_id, opening_balance.currency, opening_balance.amount
    ), part (organization_id, currency, net, returned, brought, settled) AS (
        SELECT member.organization_id, entry.currency, entry.net, 0, 0, entry.settled
        FROM member CROSS JOIN LATERAL (
            SELECT currency, sum(net) AS net,
                coalesce(sum(net) FILTER (WHERE origin_month < member.pays_from), 0) AS settled
            FROM settlement_period AS period JOIN ledger_entry ON ledger_entry.month = period.month
            WHERE ledger_entry.organization_id = member.organization_id
                AND period.month > coalesce(member.last_month, '-infinity') AND period.month <= CAST(:month AS date)
            GROUP BY currency
        ) AS entry
        UNION ALL
        SELECT organization_id, currency, 0, amount, 0, 0 FROM came_back
        UNION ALL
        SELECT organization_id, currency, 0, 0, amount, 0 FROM brought_along
        UNION ALL
        SELECT member.organization_id, moved.currency, 0, 0, 0, moved.settled
        FROM member CROSS JOIN LATERAL ({moved("member", "member.last_month")}) AS moved
        WHERE member.is_moved AND member.pays_from IS NOT NULL
        UNION ALL
        SELECT carried.organization_id, carried.currency, 0, 0, 0, 0
        FROM member JOIN organization_balance AS carried
            ON carried.organization_id = member.organization_id AND carried.month = member.last_month
        WHERE carried.closing <> 0
    ), movement AS (
        SELECT organization_id, currency, sum(net) AS net, sum(returned) AS returned, sum(brought) AS brought,
            sum(settled) AS settled
        FROM part GROUP BY organization_id, currency
    ), balance AS (
        SELECT movement.organization_id, movement.currency, previous.month AS previous_month,
            coalesce(previous.closing, 0) + brought AS opening, net, returned, settled,
            coalesce(previous.closing, 0) + brought + net + returned - settled AS due,
            member.pays_from, coalesce(member.pays_from <= CAST(:month AS date), false) AS is_paid
        FROM movement JOIN member USING (organization_id) LEFT JOIN LATERAL (
            SELECT month, closing FROM organization_balance AS before
            WHERE before.organization_id = movement.organization_id AND before.currency = movement.currency
                AND before.month < CAST(:month AS date)
            ORDER BY before.month DESC LIMIT 1
        ) AS previous ON true
    )
    INSERT INTO organization_balance (organization_id, currency, month, previous_month, opening, net, returned,
        settled_elsewhere, due, payable, closing, payouts_from, knows_history)
    SELECT organization_id, currency, CAST(:month AS date), previous_month, CAST(opening AS bigint),
        CAST(net AS bigint), CAST(returned AS bigint), CAST(settled AS bigint), CAST(due AS bigint),
        CAST(CASE WHEN is_paid AND due >= greatest(payout_minimum, 1) THEN due ELSE 0 END AS bigint),
        CAST(CASE WHEN is_paid AND due >= greatest(payout_minimum, 1) THEN 0 ELSE due END AS bigint), pays_from, true
    FROM balance JOIN currency ON code = currency
    ORDER BY organization_id, currency
    ON CONFLICT ON CONSTRAINT organization_balance_pkey DO NOTHING
""")

_PARK = text("""
    INSERT INTO parked_organization (organization_id, month, error)
    VALUES (:organization_id, :month, 'its balance: ' || CAST(:error AS text))
    ON CONFLICT (organization_id, month) WHERE resolved_at IS NULL AND error IS NOT NULL
        DO UPDATE SET error = excluded.error
""")
