"""What the database knows of a month's statements, read for a chunk of organizations at a time.

Lines come from recomputing movements up to the cutoffs of the passes that posted them, so that they add up to the
ledger: of a month whose statement was issued before, up to the cutoff now minus up to the cutoff then.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PERIODS
from ticketflow_orch.settlement.posting import AMOUNTS, LINE, ROUNDED_LINE
from ticketflow_orch.statements.model import Amounts, LeftOut, Line, Movement, Origin, Party, ReturnedPayout, Statement

Key = tuple[int, str]
_MOVEMENTS_A_FETCH = 2000
_POSTED = AMOUNTS[:-1]


def next_organizations(connection: Connection, month: Month, after: int, size: int) -> list[int]:
    """The ids of the next `size` organizations after `after` that have a balance in `month`, in order."""
    connection.exec_driver_sql(_BY_KEY)
    found = connection.exec_driver_sql(_NEXT, {"month": month.first_day, "after": after, "size": size})
    return list(found.scalars())


def organization_left_out(connection: Connection, month: Month, after: int, error: Exception) -> LeftOut:
    """The first organization after `after` that has a balance in `month`, left out as a whole for what `error` says."""
    [organization] = next_organizations(connection, month, after, 1)
    name = connection.exec_driver_sql(
        "SELECT external_ref FROM organization WHERE id = %(id)s", {"id": organization}
    ).scalar_one()
    return LeftOut.altogether(error, organization, name, month)


def read_statements(connection: Connection, month: Month, organizations: Sequence[int]) -> list[Statement]:
    """The statements of these organizations, by id and currency, whether or not they add up.

    As many queries for a thousand organizations as for one.
    """
    connection.exec_driver_sql(_BY_KEY)
    parameters = {"month": month.first_day, "organizations": list(organizations)}
    origins: dict[Key, list[Origin]] = defaultdict(list)
    for row in connection.exec_driver_sql(_ORIGINS, parameters):
        origin = Month.of_day(row.origin_month)
        origins[_key(row)].append(Origin(origin, row.starts_at or origin.window(row.timezone).starts_at, _amounts(row)))
    lines: dict[Key, list[Line]] = defaultdict(list)
    for row in connection.exec_driver_sql(_LINES, parameters):
        rates = (row.commission_rate_bps, row.commission_tax_bps)
        lines[_key(row)].append(Line(Month.of_day(row.origin_month), *rates, _amounts(row)))
    returns: dict[Key, list[ReturnedPayout]] = defaultdict(list)
    for row in connection.exec_driver_sql(_RETURNS, parameters):
        returns[_key(row)].append(ReturnedPayout(Month.of_day(row.month), row.amount, row.reason or ""))
    statements = []
    for row in connection.exec_driver_sql(_BALANCES, parameters):
        key = _key(row)
        window = month.window(row.timezone)
        statement = Statement(
            party=Party(
                row.organization_id, row.external_ref, row.name, row.timezone, row.locale, row.contact_email
            ),
            month=month,
            last_stated=Month.of_day(row.last_stated) if row.last_stated else None,
            currency=row.currency,
            exponent=row.exponent,
            month_starts_at=row.starts_at or window.starts_at,
            ends_at=row.ends_at or window.ends_at,
            opening=row.opening, net=row.net, returned=row.returned, due=row.due, payable=row.payable,
            closing=row.closing, settled_elsewhere=row.settled_elsewhere,
            payouts_from=Month.of_day(row.payouts_from) if row.payouts_from else None,
            knows_history=row.knows_history,
            origins=tuple(origins[key]),
            lines=tuple(lines[key]),
            returns=tuple(returns[key]),
        )  # fmt: skip
        statements.append(statement)
    return statements


def read_movements(
    connection: Connection, month: Month, organizations: Sequence[int]
) -> Generator[tuple[Key, Movement], None, None]:
    """The movements behind these organizations' statements, in their order and then by time, never all in memory."""
    parameters = {"month": month.first_day, "organizations": list(organizations)}
    with connection.exec_driver_sql(
        _MOVEMENTS, parameters, execution_options={"yield_per": _MOVEMENTS_A_FETCH}
    ) as rows:
        for row in rows:
            movement = Movement(
                external_ref=row.external_ref,
                kind=row.kind,
                is_void=row.is_void,
                reverses=row.reverses,
                amount=row.amount,
                reason=row.reason,
                occurred_at=row.occurred_at,
            )
            yield _key(row), movement


def each_with_its_own(
    statements: Sequence[Statement], movements: Iterator[tuple[Key, Movement]]
) -> Iterator[tuple[Statement, Iterator[Movement]]]:
    """Each statement with its movements, both being in the same order; they are gone when the next one comes."""
    ahead = next(movements, None)

    def own(key: Key) -> Iterator[Movement]:
        nonlocal ahead
        while ahead is not None and ahead[0] == key:
            yield ahead[1]
            ahead = next(movements, None)

    for statement in statements:
        its_own = own(statement.key)
        yield statement, its_own
        deque(its_own, maxlen=0)


def _key(row: Row[tuple[object, ...]]) -> Key:
    return row.organization_id, row.currency


def _amounts(row: Row[tuple[object, ...]]) -> Amounts:
    return Amounts(**{name: int(getattr(row, name)) for name in _POSTED})


# As in posting: through the BRIN index of a month all of it would be read once a chunk.
_BY_KEY = "SET LOCAL enable_bitmapscan = off"

_NEXT = """
    SELECT organization_id FROM organization_balance
    WHERE month = %(month)s::date AND organization_id > %(after)s::bigint
    GROUP BY organization_id ORDER BY organization_id LIMIT %(size)s::bigint
"""

_BALANCES = sql(__file__, "balances")

_COVERED = sql(__file__, "covered", periods=PERIODS, sums=", ".join(f"sum({name}) AS {name}" for name in _POSTED))

_ORIGINS = sql(__file__, "origins", covered=_COVERED)

# Cutoffs are those of the last passes that did the organization's chunk, whatever became of the passes. Of a pass from
# when cutoffs were instants its instant decides too, since ids do not say what it had read.
_SPANS = sql(__file__, "spans", covered=_COVERED)

_LINES = sql(
    __file__,
    "lines",
    spans=_SPANS,
    line=LINE,
    rounded_line=ROUNDED_LINE,
    changes=", ".join(f"sum(sign * {name}) AS {name}" for name in _POSTED),
    any_change=" OR ".join(f"sum(sign * {name}) <> 0" for name in _POSTED),
)

_RETURNS = sql(__file__, "returns")

_MOVEMENTS = sql(__file__, "movements", spans=_SPANS)
