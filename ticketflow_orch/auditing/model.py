"""What an invariant is, and what it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from ticketflow_orch import clock
from ticketflow_orch.db.sql_files import Statement, sql
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement.invariants import EVERYBODY, EXAMPLES, Breach, Finding, Members


class Scope(StrEnum):
    """How an invariant is asked: once for each month, once for the whole database, or only to be listed.

    What is `LISTED` breaks nothing.
    """

    MONTH = "each month"
    DATABASE = "whole database"
    LISTED = "listed"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the invariants are asked about: all months unless one is named, everybody unless `members` says who.

    `first_month`: the first that is settled. `kept`: for how long the retention keeps records of what is over.
    `now`: the business time; None: the database's clock.
    """

    first_month: Month
    kept: timedelta
    month: Month | None = None
    members: Members = EVERYBODY
    now: datetime | None = None

    @classmethod
    def configured(cls, settings: Settings, month: Month | None = None) -> Asked:
        """What `settings` make of it: all organizations, and all months or the one that is named."""
        return cls(
            first_month=Month.parse(settings.first_month),
            kept=max(settings.records_kept, settings.runs_kept),
            month=month,
            now=clock.now(settings.fixed_clock),
        )

    def narrowed_to(self, members: Members) -> Asked:
        """The same, about `members` alone."""
        return replace(self, members=members)

    def among(self, months: Iterable[Month]) -> list[Month]:
        """Those of `months` that are asked about."""
        return [month for month in months if self.month in {None, month}]

    def parameters(self) -> dict[str, Any]:
        """As bound parameters, for `findings`."""
        return self.members.parameters() | {
            "only": None if self.month is None else self.month.first_day,
            "kept": self.kept,
        }


Question = Callable[[Connection, Asked], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """`holds`: what must hold, in a sentence; `fix`: what to do where it does not.

    `question` yields what it finds, month by month where the scope says so; only findings with a count are breaches.
    `warns`: what breaks it may be as life is; a person is to look at it, and nothing waits for that.
    """

    name: str
    holds: str
    fix: str
    scope: Scope
    question: Question
    warns: bool = False


def breaches(bad: Statement) -> Statement:
    """The statement that `findings` asks: how often each month is `bad`, with the first examples.

    `bad` is a query for a month (may be empty), whose breach it is, in which currency, and what is wrong. It may bind
    what `Asked.parameters` has.
    """
    return sql(__file__, "breaches", bad=bad)


def findings(connection: Connection, statement: Statement, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The months with breaches, by a statement of `breaches`."""
    rows = connection.exec_driver_sql(statement, {"examples": EXAMPLES, **parameters}).all()
    for day, group in groupby(rows, key=lambda row: row.month):
        of_month = list(group)
        yield Finding(
            None if day is None else Month.of_day(day),
            of_month[0].breaches,
            tuple(Breach(row.whose, row.currency or "", row.what) for row in of_month),
        )


def sentences(faults: Iterable[str]) -> Iterator[Finding]:
    """What a question about the database itself says in words, as a finding."""
    breaches = tuple(Breach("", "", fault) for fault in faults)
    if breaches:
        yield Finding(None, len(breaches), breaches)
