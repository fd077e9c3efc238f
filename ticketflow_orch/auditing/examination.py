"""Asking: all invariants in one snapshot of the database, in a transaction that can write nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.auditing.invariants import INVARIANTS
from ticketflow_orch.auditing.model import Asked, Invariant, Scope
from ticketflow_orch.errors import UnknownOrganization
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.invariants import Finding, Members

# Called before each answer is there: which invariant, and which month was answered last.
Progress = Callable[[Invariant, Month | None], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an invariant; `no_answer`: why the database could not say, where it could not."""

    invariant: Invariant
    findings: tuple[Finding, ...]
    no_answer: str | None = None

    @property
    def count(self) -> int:
        """How many breaches there are, or how much there is to list."""
        return sum(finding.count for finding in self.findings)

    @property
    def is_broken(self) -> bool:
        """Whether the invariant does not hold, as far as anybody can say; what only warns is not broken."""
        judged = self.invariant.scope != Scope.LISTED and not self.invariant.warns
        return self.no_answer is not None or (judged and self.count > 0)

    @property
    def warns(self) -> bool:
        """Whether there is something that a person should look at, and that stops nothing."""
        return self.invariant.warns and self.count > 0


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """One transaction that sees the database as it is now, for as long as it lasts, and can write nothing."""
    reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    with reading.connect() as connection:
        yield connection


def examine(
    connection: Connection,
    asked: Asked,
    invariants: Iterable[Invariant] = INVARIANTS,
    progress: Progress = lambda _, __: None,
) -> Iterator[Verdict]:
    """Ask `invariants` in their order. One that the database cannot answer for its data does not stop the others."""
    for invariant in invariants:
        progress(invariant, None)
        findings: list[Finding] = []
        no_answer = None
        try:
            with connection.begin_nested():
                for finding in invariant.question(connection, asked):
                    findings.append(finding)
                    progress(invariant, finding.month)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            no_answer = str(error.orig).strip().splitlines()[0]
        yield Verdict(invariant, tuple(findings), no_answer)


def organization_members(connection: Connection, external_ref: str) -> Members:
    """The organization with this reference, as those who are asked about.

    Raises:
        InvalidInput: there is none.
    """
    found = connection.exec_driver_sql(
        "SELECT id FROM organization WHERE external_ref = %(ref)s", {"ref": external_ref}
    ).scalar_one_or_none()
    if found is None:
        raise UnknownOrganization(external_ref)
    return Members.only(found)
