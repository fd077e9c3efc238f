"""The settlement's invariants as questions to the database: read-only, each answered for a month or for the schema.

Integrity is another question than lateness: what no pass has read yet is not a fault of the month. `auditing` asks
these and all others by name; the closing of a month asks those that its books stand on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.catalogue import missing_objects
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.periods.state import READ_MONTHS, settled_months, touched_months
from ticketflow_orch.periods.windows import month_windows
from ticketflow_orch.periods.zones import zones_in_use
from ticketflow_orch.settlement.currencies import currency_of
from ticketflow_orch.settlement.late_movements import read_to
from ticketflow_orch.settlement.posting import (
    AMOUNTS,
    LARGEST_ID,
    SMALLEST_ID,
    difference,
    month_parameters,
    recomputed,
)

EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Members:
    """The organizations that are asked about: those whose id lies between `low` and `high`, both included."""

    low: int = SMALLEST_ID
    high: int = LARGEST_ID

    @classmethod
    def only(cls, organization: int) -> Members:
        """The one organization with this id."""
        return cls(organization, organization)

    def parameters(self) -> dict[str, Any]:
        """As bound parameters."""
        return {"low": self.low, "high": self.high}


EVERYBODY = Members()


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that breaks an invariant, and what is wrong with it in words.

    `organization`: its reference, or the name of what else it is (a pass, a zone, an event). `currency` may be empty.
    """

    organization: str
    currency: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """How often a month breaks an invariant, or, without a month, the database; with the first few breaches."""

    month: Month | None
    count: int
    examples: tuple[Breach, ...]

    @classmethod
    def listed(cls, month: Month | None, rows: Iterable[tuple[str, str, str]]) -> Finding:
        """All of `rows`, each an organization, a currency and what is to be said."""
        breaches = tuple(Breach(*row) for row in rows)
        return cls(month, len(breaches), breaches)


def months_with_parked(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and not closed, and those, closed or not, in which somebody is still parked."""
    days = connection.exec_driver_sql("SELECT DISTINCT month FROM parked_organization WHERE resolved_at IS NULL")
    return tuple(sorted({*settled_months(connection), *map(Month.of_day, days.scalars())}))


def months_recorded(connection: Connection, members: Members = EVERYBODY) -> tuple[Month, ...]:
    """Every month about which something may be posted, closed ones included, in order.

    Those that have a period, and before the first of them those with movements or entries: a pass of the first month
    that is not closed takes in what comes late for them.
    """
    touched = touched_months(connection)
    if not touched:
        return ()
    # Which month a movement lies in depends on the zone, so its neighbours are looked at too.
    first = touched[0].first_day
    asked = {"first": first, "periods": [month.first_day for month in touched]} | members.parameters()
    before = connection.exec_driver_sql(_BEFORE_THE_FIRST, asked).scalars()
    return (*sorted(Month.of_day(day) for day in before if day < first), *touched)


def organizations_without_row(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Organizations active in `month` that lack their settlement row in their currency of it and are not parked."""
    rows = connection.exec_driver_sql(_WITHOUT_ROW, _month(month) | members.parameters()).all()
    return _finding(month, [Breach(row.external_ref, row.currency, "has no settlement row") for row in rows], rows)


def dishonest_organizations(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Organizations whose entries about `month`, in whatever month posted, are not what their movements come to.

    Each is recomputed up to where it was read: the month's `read_to`, or the cutoff of a pass that did it since. Before
    either, there may be no entries.
    """
    parameters = _recomputing(connection, month, members) | _month(month)
    by_clock = connection.exec_driver_sql(_READ_BY_CLOCK, parameters).scalar_one()
    rows = connection.exec_driver_sql(_DISHONEST_BY_CLOCK if by_clock else _DISHONEST, parameters).all()
    return _finding(month, [Breach(row.external_ref, row.currency, _in_words(row)) for row in rows], rows)


def parked_in(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Organizations that are parked in `month`, with why."""
    rows = connection.exec_driver_sql(_PARKED, _month(month) | members.parameters()).all()
    return _finding(month, [Breach(row.external_ref, row.currency, row.why) for row in rows], rows)


def missing_guards(connection: Connection) -> tuple[str, ...]:
    """What the database lacks of what the migrations built, in words: money is protected by all of it."""
    return missing_objects(connection)


def order_faults(connection: Connection) -> tuple[str, ...]:
    """Why the ids of movements may not be the order in which they were recorded, in words: settlements stand on it."""
    row = connection.exec_driver_sql(_ORDER).one()
    faults = {
        "is not GENERATED ALWAYS, so a writer may name an id that was read past": row.identity != "a",
        "has no sequence of its own called money_movement_id_seq": not row.owned,
        f"comes from a sequence with cache {row.cache} instead of 1, so sessions keep ids back for later": row.cache
        > 1,
        f"comes from a sequence with increment {row.increment} instead of 1": row.increment != 1,
        "comes from a sequence that cycles": row.cycles,
    }
    if row.next_id is not None:
        faults |= {
            f"is {row.largest_id} at most, and the sequence gives {row.next_id} next": row.largest_id >= row.next_id,
            f"was read to {row.largest_cutoff}, and the sequence gives {row.next_id} next": (
                row.largest_cutoff > row.next_id
            ),
        }
    return tuple(f"money_movement.id {what}" for what, is_so in faults.items() if is_so)


def rounding_residue(connection: Connection, month: Month, members: Members = EVERYBODY) -> dict[str, str]:
    """Per currency, by how much the posted commission and tax of `month` differ from the exact ones, in minor units.

    At most half a unit a line and rate; listed, never posted.
    """
    rows = connection.exec_driver_sql(_RESIDUE, _recomputing(connection, month, members))
    return {row.currency: str(row.residue) for row in rows}


def _recomputing(connection: Connection, month: Month, members: Members) -> dict[str, Any]:
    """What `recomputed` takes to repeat the month as it was read, without the parked; nothing counts before it was."""
    cutoff = read_to(connection, [month])[month]
    windows = month_windows(connection, [month], zones_in_use(connection)).get(month, {})
    parked = connection.exec_driver_sql(
        """
            SELECT organization_id FROM parked_organization
            WHERE month = %(month)s AND error IS NOT NULL AND resolved_at IS NULL
        """,
        _month(month),
    ).scalars()
    posting = months_between(month, max([month, *touched_months(connection)]))
    return (
        month_parameters(month, windows, cutoff)
        | members.parameters()
        | {"left_out": list(parked), "posting_months": [each.first_day for each in posting]}
    )


def _in_words(row: Row[Any]) -> str:
    """How what is posted differs: by its net, or, where the net is right, by the amounts that are not."""
    if row.net:
        return f"posted {row.posted_net}, recomputed {row.posted_net + row.net}"
    differing = {name: getattr(row, name) for name in AMOUNTS}
    return "recomputed minus posted: " + ", ".join(f"{name} {amount}" for name, amount in differing.items() if amount)


def _month(month: Month) -> dict[str, object]:
    return {"month": month.first_day, "next_month": month.next().first_day, "examples": EXAMPLES}


def _finding(month: Month, breaches: Sequence[Breach], rows: Sequence[Row[Any]]) -> Finding:
    return Finding(month, rows[0].breaches if rows else 0, tuple(breaches))


_CURRENCY = currency_of("%(month)s::date")

_WITHOUT_ROW = sql(__file__, "without_row", currency=_CURRENCY)

_READ_BY_CLOCK = """
    SELECT EXISTS (SELECT FROM settlement_pass WHERE recorded_before IS NOT NULL AND cutoff > %(cutoff)s::bigint)
"""


def _dishonest(as_read: str) -> str:
    ahead = sql(__file__, "ahead", largest_id=LARGEST_ID)
    cutoff = sql(__file__, as_read, as_read=sql(__file__, "as_read"))
    differing = ", ".join(f"difference.{name}" for name in AMOUNTS)
    return sql(__file__, "dishonest", ahead=ahead, difference=difference(cutoff=cutoff), amounts=differing)


_DISHONEST = _dishonest("as_read")
# Of a pass from when cutoffs were instants its instant decides too. Only then, because it is in no index.
_DISHONEST_BY_CLOCK = _dishonest("as_read_by_clock")

_RESIDUE = sql(__file__, "residue", recomputed=recomputed())

_PARKED = sql(__file__, "parked", currency=_CURRENCY)

_BEFORE_THE_FIRST = sql(__file__, "before_the_first")

_ORDER = sql(__file__, "order", read_months=READ_MONTHS)
