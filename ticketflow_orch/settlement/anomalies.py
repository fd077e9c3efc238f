"""Movements that cannot all be right: life brings them, so they are taken and settled, and a person looks at them.

More came back of a movement than it took (BEYOND), a reversal is dated before what it reverses (EARLIER), a reservation
was captured twice (TWICE), a movement is dated later than now (LATER). Whether one still is, is judged anew whenever it
is asked: what was voided meanwhile is none any more.

All but the last are searched for once, among what settlements have read, and noted; what was recorded since is looked
at by every full question. What somebody accepted is closed until a later movement makes it worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import Conflict, InvalidInput, PreconditionFailed
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.settlement.invariants import EVERYBODY, Members
from ticketflow_orch.settlement.passes import still_writing
from ticketflow_orch.ticketing.captures import kept

SEARCHED_AT_ONCE = 100_000
# Of a flood of noted ones so many are judged where an answer must be quick.
MOST = 1_000


class Why(StrEnum):
    """What is wrong with a movement."""

    BEYOND = "BEYOND"
    EARLIER = "EARLIER"
    TWICE = "TWICE"
    LATER = "LATER"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something wrong with the movement `reference`: `questionable` is how much of it (minor units), never negative.

    `other`: the movement that made it so, that it reverses, or that captured before; `accepted_by`: who looked at it.
    """

    why: Why
    organization: str
    currency: str
    exponent: int
    reference: str
    kind: str
    amount: int
    questionable: int
    occurred_at: datetime
    other: str | None
    other_occurred_at: datetime | None
    accepted_by: str | None

    @property
    def what(self) -> str:
        """What is wrong, for people, without the organization."""
        name = f"{self.kind.lower().replace('_', ' ')} {self.reference} of {written_out(self.amount, self.exponent)}"
        match self.why:
            case Why.BEYOND:
                more = written_out(self.questionable, self.exponent)
                return f"{name}: {more} more came back than it took, last by {self.other}"
            case Why.EARLIER:
                target = f"{self.other}, which it reverses and which is dated {_minute(self.other_occurred_at)}"
                return f"{name} is dated {_minute(self.occurred_at)}, before {target}"
            case Why.TWICE:
                return f"{name}: its reservation was captured before, by {self.other}"
            case Why.LATER:
                return f"{name} is dated {_minute(self.occurred_at)}, later than now"


@dataclass(frozen=True, slots=True)
class Anomalies:
    """The first anomalies, in the order in which their movements were recorded, and how many there are altogether."""

    listed: tuple[Anomaly, ...]
    count: int


def search(engine: Engine, chunk_size: int = SEARCHED_AT_ONCE) -> int:
    """Note what is wrong among the movements that settlements have read and no search has; returns how many it read.

    A transaction for each `chunk_size` movements. Harmless to repeat, to be killed and to run twice at once.
    """
    searched = 0
    while True:
        with transaction(engine) as connection:
            connection.exec_driver_sql(_BY_INDEX)
            known = connection.exec_driver_sql(_NEXT, {"size": chunk_size}).one_or_none()
            if known is None:
                return searched
            connection.exec_driver_sql(
                _NOTE, {"from_id": known.searched_to, "to_id": known.up_to} | EVERYBODY.parameters()
            )
            connection.exec_driver_sql(_ADVANCE, {"to_id": known.up_to})
            searched += known.movements


def read_anomalies(
    connection: Connection,
    now: datetime | None = None,
    *,
    whys: Iterable[Why] = Why,
    members: Members = EVERYBODY,
    limit: int = 100,
    with_accepted: bool = False,
) -> Anomalies:
    """All that is wrong and nobody has accepted, noted or not, of which `limit` are listed.

    `now`: what is later than that is dated later than now; None: the database's clock.
    """
    asked = {"now": now, "limit": limit, "with_accepted": with_accepted} | members.parameters()
    rows = connection.exec_driver_sql(_listed(tuple(whys)), asked).all()
    return Anomalies(
        tuple(
            Anomaly(
                Why(row.why), row.organization, row.currency, row.exponent, row.reference, row.kind, row.amount,
                int(row.questionable), row.occurred_at, row.other, row.other_occurred_at, row.accepted_by,
            )
            for row in rows
        ),
        rows[0].total if rows else 0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Noted:
    """What was noted and is still wrong: how many, of so many organizations, the oldest since when, and an example.

    `at_least`: there are so many that not all were judged.
    """

    count: int
    organizations: int
    since: datetime | None
    example: str | None
    at_least: bool


def noted(connection: Connection) -> Noted:
    """What is noted and open, at the cost of an index that holds nothing else."""
    row = connection.exec_driver_sql(_NOTED, {"most": MOST}).one()
    return Noted(row.movements, row.organizations, row.since, row.example, row.looked_at == MOST)


def dated_ahead(connection: Connection, now: datetime | None) -> tuple[int, datetime | None]:
    """How many movements are dated later than `now` (None: the database's), and since when the first is recorded."""
    row = connection.exec_driver_sql(_AHEAD, {"now": now}).one()
    return row.movements, row.since


def accept(connection: Connection, references: Sequence[str], by: str, patience: float = 10) -> int:
    """Close what is wrong with the movements called `references`; a later movement that makes it worse opens it again.

    Those who are writing movements have `patience` seconds to end: what is recorded and cannot be seen yet is not later
    by its number. Returns how many anomalies that were.

    Raises:
        InvalidInput: there is no such movement.
        PreconditionFailed: nothing is open about it that could be accepted.
        Conflict: somebody is writing for longer.
    """
    through = connection.exec_driver_sql(_RECORDED).scalar_one()
    writing = still_writing(connection, patience)
    if writing:
        raise Conflict(
            f"Still writing movements after {patience:g} s: {', '.join(writing)}; let them commit or end them, then "
            "accept what looks wrong."
        )
    accepted = 0
    for reference in references:
        movement = connection.exec_driver_sql(_MOVEMENT, {"reference": reference}).one_or_none()
        if movement is None:
            raise InvalidInput(
                f"There is no movement {reference!r}; `ticketflow anomalies list` shows their references."
            )
        asked = {"movement_id": movement.id, "by": by, "with_accepted": False, "through": through}
        asked |= Members.only(movement.organization_id).parameters()
        rows = connection.exec_driver_sql(_ACCEPT, asked).rowcount
        if not rows:
            raise PreconditionFailed(
                f"Nothing is open about movement {reference!r} that could be accepted: `ticketflow anomalies list` "
                "shows what is. One that is dated later than now is voided and entered again, or waits until then."
            )
        accepted += rows
    return accepted


def _minute(instant: datetime | None) -> str:
    return "" if instant is None else f"{instant:%Y-%m-%d %H:%M} UTC"


_MEMBERS = "organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint"

# What those of `fresh` make wrong (movement_id, why, latest_id).
_FOUND_WHY = {
    Why.BEYOND: sql(__file__, "found_beyond"),
    Why.EARLIER: sql(__file__, "found_earlier"),
    Why.TWICE: sql(__file__, "found_twice"),
}
_FOUND_LATER = sql(__file__, "found_later", members=_MEMBERS)


def standing(candidate: str, until: str | None = None) -> str:
    """SQL: of the rows of `candidate` (movement_id, why, latest_id) those that are wrong, and how much of them.

    Wrong by now, or `until` then, the SQL of an instant. `before_id` is the capture before, where there is one.
    """
    return sql(
        __file__,
        "standing",
        candidate=candidate,
        kept_moved=kept("moved", until),
        kept_first=kept("first", until),
        by_then="" if until is None else f"AND first.occurred_at < {until}",
        is_dated="true" if until is None else f"moved.occurred_at < {until}",
    )


def by_the_end_of(month: str) -> str:
    """SQL: whether an anomaly came to be by the end of `month` where its organization lives, or that is not known."""
    return sql(__file__, "by_the_end_of", month=month)


# Open anomalies, for the index that holds nothing else.
OPEN = "latest_id >= coalesce(accepted_to, 0)"


def _asked(whys: Sequence[Why]) -> str:
    """The queries up to `asked`, recursive: all anomalies of `whys` that still are, with who accepted them."""
    found = [*(_FOUND_WHY[why] for why in whys if why in _FOUND_WHY), *([_FOUND_LATER] if Why.LATER in whys else [])]
    return sql(
        __file__,
        "asked",
        fresh=sql(__file__, "fresh", is_fresh="id >= (SELECT searched_to FROM anomaly_search)", members=_MEMBERS),
        whys=", ".join(f"'{why}'" for why in whys),
        members=_MEMBERS,
        open=OPEN,
        found=" UNION ALL ".join(found),
        standing=standing("candidate"),
    )


@cache
def _listed(whys: tuple[Why, ...]) -> str:
    return sql(__file__, "listed", asked=_asked(whys))


# From the few rows found first to each other by an index, whatever statistics make of a chunk of the newest rows.
_BY_INDEX = """
    SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('enable_seqscan', 'off', true)
"""

_NEXT = sql(__file__, "next")

_NOTE = sql(
    __file__,
    "note",
    fresh=sql(__file__, "fresh", is_fresh="id >= %(from_id)s::bigint AND id < %(to_id)s::bigint", members=_MEMBERS),
    found=" UNION ALL ".join(_FOUND_WHY.values()),
    standing=standing("candidate"),
)

_ADVANCE = "UPDATE anomaly_search SET searched_to = %(to_id)s::bigint"

_NOTED = sql(__file__, "noted", open=OPEN, standing=standing("candidate"))

_AHEAD = """
    SELECT count(*) AS movements, min(recorded_at) AS since FROM money_movement AS moved
    WHERE occurred_at > coalesce(%(now)s::timestamptz, statement_timestamp()) AND NOT is_void
        AND NOT EXISTS (SELECT FROM money_movement AS void WHERE void.reverses_id = moved.id AND void.is_void)
"""

_MOVEMENT = "SELECT id, organization_id FROM money_movement WHERE external_ref = %(reference)s::text"

# All that is below was recorded by now, if it ever is.
_RECORDED = "SELECT coalesce(max(id), 0) + 1 FROM money_movement"

_ACCEPT = sql(__file__, "accept", asked=_asked(tuple(_FOUND_WHY)))
