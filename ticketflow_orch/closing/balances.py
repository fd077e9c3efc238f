"""What organizations are owed in a month that is being closed: written in chunks, in key order, each key once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.closing.freeze import IncompleteClosingError, is_being_closed
from ticketflow_orch.closing.history import moved, pays_from
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words, is_data_fault
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import LEDGER_MONTHS
from ticketflow_orch.settlement.chunking import cut
from ticketflow_orch.settlement.passes import park
from ticketflow_orch.settlement.posting import LARGEST_ID


@dataclass
class BalanceWriter:
    """Writes the balances of `month`; parks organizations whose own data makes that fail, `parked_limit` at most."""

    engine: Engine
    month: Month
    parked_limit: int
    _parked: list[int] = field(default_factory=list)

    def write_all(self, size: int) -> int:
        """Write all balances that are missing, in chunks of `size` organizations; how many. See `write`."""
        return sum(self.write(low, high) for low, high in self.chunks(size))

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
            # Another run that closes the month waits here, and then sees what we have written.
            if not is_being_closed(connection, self.month):
                return 0
            keys = {"month": self.month.first_day, "low": low, "high": high}
            return connection.exec_driver_sql(_WRITE, keys).rowcount

    def _narrow_down(self, low: int, high: int, error: str) -> int:
        with self.engine.connect() as connection:
            ids = connection.exec_driver_sql(
                "SELECT id FROM organization WHERE id BETWEEN %(low)s AND %(high)s ORDER BY id",
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
            if len(self._parked) >= self.parked_limit:
                name = connection.exec_driver_sql(
                    "SELECT external_ref FROM organization WHERE id = %(id)s", {"id": organization}
                ).scalar_one()
                raise IncompleteClosingError(
                    f"The balances of {len(self._parked)} organizations in {self.month} cannot be written, and that of "
                    f"{name} cannot either ({error}); raise TICKETFLOW_PARKED_LIMIT, then close the month again."
                )
            park(connection, organization, self.month, f"its balance: {error}")
        self._parked.append(organization)


_WRITE = sql(
    __file__,
    "write",
    pays_from=pays_from(),
    moved=moved("member", "member.last_month"),
    ledger_months=LEDGER_MONTHS,
)
