"""The settlement's invariants as questions to the database: read-only, each answered for a month or for the schema.

Integrity is another question than lateness: what no pass has read yet is not a fault of the month. `auditing` asks
these and all others by name; the closing of a month asks those that its books stand on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, TextClause, text

from ticketflow_orch.db.catalogue import missing_objects
from ticketflow_orch.months import Month, months_between
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


def settled_months(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and not closed: those whose entries may still be wrong and may still be fixed."""
    days = connection.execute(
        text("SELECT month FROM settlement_period WHERE state IN ('SETTLED', 'CLOSING') ORDER BY month")
    )
    return tuple(Month.of_day(day) for day in days.scalars())


def open_months(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and into which anything may still be posted: who is new there gets a row."""
    days = connection.execute(text("SELECT month FROM settlement_period WHERE state = 'SETTLED' ORDER BY month"))
    return tuple(Month.of_day(day) for day in days.scalars())


def months_with_parked(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and not closed, and those, closed or not, in which somebody is still parked."""
    days = connection.execute(text("SELECT DISTINCT month FROM parked_organization WHERE resolved_at IS NULL"))
    return tuple(sorted({*settled_months(connection), *map(Month.of_day, days.scalars())}))


def months_recorded(connection: Connection, members: Members = EVERYBODY) -> tuple[Month, ...]:
    """Every month about which something may be posted, closed ones included, in order.

    Those that have a period, and before the first of them those with movements or entries: a pass of the first month
    that is not closed takes in what comes late for them.
    """
    days = connection.execute(text("SELECT month FROM settlement_period ORDER BY month")).scalars().all()
    if not days:
        return ()
    # Which month a movement lies in depends on the zone, so its neighbours are looked at too.
    before = connection.execute(_BEFORE_THE_FIRST, members.parameters() | {"first": days[0], "periods": days})
    return tuple(sorted({*map(Month.of_day, days), *(Month.of_day(day) for day in before.scalars() if day < days[0])}))


def organizations_without_row(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Organizations active in `month` that lack their settlement row in their currency of it and are not parked."""
    rows = connection.execute(_WITHOUT_ROW, _month(month) | members.parameters()).all()
    return _finding(month, [Breach(row.external_ref, row.currency, "has no settlement row") for row in rows], rows)


def dishonest_organizations(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Organizations whose entries about `month`, in whatever month posted, are not what their movements come to.

    Each is recomputed up to where it was read: the month's `read_to`, or the cutoff of a pass that did it since. Before
    either, there may be no entries.
    """
    parameters = _recomputing(connection, month, members) | _month(month)
    by_clock = connection.execute(_READ_BY_CLOCK, parameters).scalar_one()
    rows = connection.execute(_DISHONEST_BY_CLOCK if by_clock else _DISHONEST, parameters).all()
    return _finding(month, [Breach(row.external_ref, row.currency, _in_words(row)) for row in rows], rows)


def parked_in(connection: Connection, month: Month, members: Members = EVERYBODY) -> Finding:
    """Organizations that are parked in `month`, with why."""
    rows = connection.execute(_PARKED, _month(month) | members.parameters()).all()
    return _finding(month, [Breach(row.external_ref, row.currency, row.why) for row in rows], rows)


def missing_guards(connection: Connection) -> tuple[str, ...]:
    """What the database lacks of what the migrations built, in words: money is protected by all of it."""
    return missing_objects(connection)


def order_faults(connection: Connection) -> tuple[str, ...]:
    """Why the ids of movements may not be the order in which they were recorded, in words: settlements stand on it."""
    row = connection.execute(_ORDER).one()
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
    rows = connection.execute(_RESIDUE, _recomputing(connection, month, members))
    return {row.currency: str(row.residue) for row in rows}


def _recomputing(connection: Connection, month: Month, members: Members) -> dict[str, Any]:
    """What `recomputed` takes to repeat the month as it was read, without the parked; nothing counts before it was."""
    cutoff = read_to(connection, [month])[month]
    windows = month_windows(connection, [month], zones_in_use(connection)).get(month, {})
    parked = connection.execute(
        text("""
            SELECT organization_id FROM parked_organization
            WHERE month = :month AND error IS NOT NULL AND resolved_at IS NULL
        """),
        _month(month),
    ).scalars()
    last = connection.execute(text("SELECT max(month) FROM settlement_period")).scalar_one()
    posting = months_between(month, month if last is None else max(month, Month.of_day(last)))
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


_WITHOUT_ROW = text(f"""
    SELECT external_ref, {currency_of("CAST(:month AS date)")} AS currency, count(*) OVER () AS breaches
    FROM organization
    WHERE id BETWEEN CAST(:low AS bigint) AND CAST(:high AS bigint)
        AND joined_on < CAST(:next_month AS date) AND (left_on IS NULL OR left_on >= CAST(:month AS date))
        AND NOT EXISTS (
            SELECT FROM ledger_entry AS entry
            WHERE (entry.month, entry.organization_id, entry.currency, entry.origin_month, entry.sequence)
                = (CAST(:month AS date), organization.id, {currency_of("CAST(:month AS date)")},
                    CAST(:month AS date), 0))
        AND NOT EXISTS (
            SELECT FROM parked_organization AS parked
            WHERE parked.organization_id = organization.id AND parked.month = :month AND error IS NOT NULL
                AND resolved_at IS NULL)
    ORDER BY id LIMIT :examples
""")

# A pass that was given up, or that is still running, has done some organizations beyond what counts as read.
_AHEAD = f"""
    ahead AS MATERIALIZED (
        SELECT low_id, coalesce(high_id, {LARGEST_ID}) AS high_id, organizations, cutoff,
            coalesce(recorded_before, 'infinity') AS recorded_before
        FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
        WHERE chunk.origin_month = CAST(:origin AS date) AND chunk.state = 'DONE' AND cutoff > CAST(:cutoff AS bigint)
    )"""
_AS_READ_BY = """
    FROM ahead
        WHERE organization.id BETWEEN ahead.low_id AND ahead.high_id
            AND (ahead.organizations IS NULL OR organization.id = ANY (ahead.organizations))"""
_AS_READ = f"coalesce((SELECT max(ahead.cutoff) {_AS_READ_BY}), CAST(:cutoff AS bigint))"
# Of a pass from when cutoffs were instants its instant decides too. Only then, because it is in no index.
_AS_READ_BY_CLOCK = f"""{_AS_READ}
    AND recorded_at < coalesce((SELECT max(ahead.recorded_before) {_AS_READ_BY}), 'infinity')"""

_READ_BY_CLOCK = text("""
    SELECT EXISTS (SELECT FROM settlement_pass WHERE recorded_before IS NOT NULL AND cutoff > CAST(:cutoff AS bigint))
""")


def _dishonest(as_read: str) -> TextClause:
    return text(f"""
        WITH {_AHEAD}, {difference(cutoff=as_read)}
        SELECT coalesce(external_ref, 'id ' || organization_id) AS external_ref, difference.currency,
            {", ".join(f"difference.{name}" for name in AMOUNTS)}, (
                SELECT coalesce(sum(entry.net), 0) FROM ledger_entry AS entry
                WHERE entry.organization_id = difference.organization_id AND entry.currency = difference.currency
                    AND entry.month = ANY (CAST(:posting_months AS date[]))
                    AND entry.origin_month = CAST(:origin AS date)
            ) AS posted_net,
            count(*) OVER () AS breaches
        FROM difference LEFT JOIN organization ON organization.id = organization_id
        WHERE differs
        ORDER BY organization_id LIMIT :examples
    """)


_DISHONEST = _dishonest(_AS_READ)
_DISHONEST_BY_CLOCK = _dishonest(_AS_READ_BY_CLOCK)

_RESIDUE = text(f"""
    WITH {recomputed()}
    SELECT currency, trim_scale(sum(
        round(exact_commission) - exact_commission
        + round(round(exact_commission) * commission_tax_bps * 0.0001)
        - round(exact_commission) * commission_tax_bps * 0.0001)) AS residue
    FROM line
    GROUP BY currency
""")

_PARKED = text(f"""
    SELECT external_ref, {currency_of("CAST(:month AS date)")} AS currency, coalesce(error, reason) AS why,
        count(*) OVER () AS breaches
    FROM parked_organization JOIN organization ON organization.id = organization_id
    WHERE month = :month AND resolved_at IS NULL
        AND organization_id BETWEEN CAST(:low AS bigint) AND CAST(:high AS bigint)
    ORDER BY organization_id LIMIT :examples
""")

# Movements of the days around an edge count for both months: the zones decide, and a month too many is no harm.
_BEFORE_THE_FIRST = text("""
    SELECT DISTINCT CAST(date_trunc('month', day AT TIME ZONE 'UTC') AS date) AS month
    FROM money_movement
    CROSS JOIN LATERAL (VALUES (occurred_at - interval '1 day'), (occurred_at + interval '1 day')) AS around (day)
    WHERE occurred_at < CAST(:first AS timestamptz) + interval '1 day'
        AND organization_id BETWEEN CAST(:low AS bigint) AND CAST(:high AS bigint)
    UNION
    SELECT DISTINCT CAST(origin_month AS date) FROM ledger_entry
    WHERE month = ANY (CAST(:periods AS date[])) AND origin_month < CAST(:first AS date)
        AND organization_id BETWEEN CAST(:low AS bigint) AND CAST(:high AS bigint)
""")

# A cutoff was drawn from the sequence, or is what it gives next. Without a right to the sequence nobody can say what
# that is.
_ORDER = text("""
    SELECT attidentity AS identity, coalesce(sequence.oid = CAST(owned AS regclass), false) AS owned,
        coalesce(seqcache, 1) AS cache, coalesce(seqincrement, 1) AS increment, coalesce(seqcycle, false) AS cycles,
        CASE WHEN has_sequence_privilege(sequence.oid, 'USAGE, SELECT') THEN coalesce((
            SELECT last_value + 1 FROM pg_sequences
            WHERE schemaname = relnamespace.nspname AND sequencename = 'money_movement_id_seq'), 1) END AS next_id,
        coalesce((SELECT max(id) FROM money_movement), 0) AS largest_id,
        greatest((SELECT max(cutoff) FROM settlement_pass), (SELECT max(read_to) FROM settlement_period), 0)
            AS largest_cutoff
    FROM pg_attribute
    CROSS JOIN LATERAL pg_get_serial_sequence('money_movement', 'id') AS owned
    LEFT JOIN pg_class AS sequence ON sequence.relname = 'money_movement_id_seq' AND sequence.relkind = 'S'
        AND pg_table_is_visible(sequence.oid)
    LEFT JOIN pg_namespace AS relnamespace ON relnamespace.oid = sequence.relnamespace
    LEFT JOIN pg_sequence ON seqrelid = sequence.oid
    WHERE attrelid = CAST('money_movement' AS regclass) AND attname = 'id'
""")
