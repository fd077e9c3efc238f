"""Replacing an organization's currency: another one from a month on, and what is still owed converted at a fixed rate.

What closed books carry in the old currency would be below its minimum or refused by the bank for ever. It is taken out
of one balance and put into the other by two MANUAL movements, dated in the first month that is not closed. What comes
later in the old currency, such as a refund of an old sale, is carried by that month's books and converted by a repeat.
Until closed books have taken a conversion in, which those of a parked organization do late, there is no other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.closing.currency_terms import Terms, Whose
from ticketflow_orch.closing.history import pays_from
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import is_a, is_locked
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import Conflict, InvalidInput, PreconditionFailed, UnknownOrganization
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import (
    LEDGER_MONTHS,
    READ_MONTHS,
    Period,
    PeriodState,
    last_closed,
    lock_periods,
    month_being_closed,
    read_periods,
)
from ticketflow_orch.periods.windows import month_windows
from ticketflow_orch.periods.zones import zones_in_use
from ticketflow_orch.settlement.currencies import currency_of
from ticketflow_orch.settlement.passes import running_pass

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Converted:
    """What an organization is still owed in the old currency, and what becomes of it in the new one; minor units."""

    organization: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a replacement does, or did.

    `decided`: organizations whose currency changes now; those of a repeat have changed already. `dated`: the month in
    which is converted; None: nothing can be yet, `why_not_yet` says why. `converted`: how many organizations, `before`
    and `after` their sums in minor units; `shown` are the first. `already`: converted before, and no closed books have
    taken that in. `left_out`: the first organizations for which nothing is done, and why; `left_out_count` is how many.
    """

    terms: Terms
    old: str
    old_exponent: int
    new_exponent: int
    decided: int
    dated: Month | None
    why_not_yet: str
    converted: int
    before: int
    after: int
    shown: tuple[Converted, ...]
    already: int
    left_out: tuple[tuple[str, str], ...]
    left_out_count: int

    @property
    def changes_nothing(self) -> bool:
        """Whether all is as it is asked for already."""
        return self.decided == self.converted == 0


def preview_replacement(engine: Engine, whose: Whose, terms: Terms) -> Replaced:
    """What `replace_currency` would do; nothing is written.

    Raises:
        TicketflowError: as `replace_currency` does.
    """
    with _turn(engine) as connection:
        return _prepare(connection, whose, terms)


def replace_currency(engine: Engine, whose: Whose, terms: Terms, by: str) -> Replaced:
    """Let organizations have another currency from a month on, and convert what they are still owed in the old one.

    One transaction. A repeat does nothing that is done already: the month's decision stands, and what an organization
    is owed is converted once. The old currency as the new one takes a decision back. Among several organizations those
    that cannot be converted are left out. `by` is the name of the person who decided it.

    Raises:
        InvalidInput: an organization or a currency is unknown, or no organization has the old one. Nothing was written
            then, nor in the other cases.
        PreconditionFailed: the month or a later one is settled, the one organization cannot be converted, or this role
            may not do it; says why and what to do.
        Conflict: a settlement or a closing is running.
    """
    with _turn(engine) as connection:
        replaced = _prepare(connection, whose, terms)
        values = _bound(replaced)
        connection.exec_driver_sql(_DECIDE, values | {"by": by})
        if replaced.dated is not None:
            connection.exec_driver_sql(_CONVERT, values)
        return replaced


@contextmanager
def _turn(engine: Engine) -> Iterator[Connection]:
    """A transaction during which no pass and no closing begins or ends, nor another replacement.

    Raises:
        Conflict: the wait for one of them was too long.
        PreconditionFailed: this role may not do it.
    """
    try:
        with transaction(engine) as connection:
            lock_periods(connection)
            yield connection
    except DBAPIError as error:
        if is_locked(error):
            raise Conflict(
                "A settlement or a closing held on to its month; nothing was changed, try again when it has ended."
            ) from error
        if is_a(error, InsufficientPrivilege):
            raise PreconditionFailed(
                "This database role may not replace a currency: it writes movements, which is for the schema's owner; "
                "name the owner's login in TICKETFLOW_DATABASE_URL."
            ) from error
        raise


def _prepare(connection: Connection, whose: Whose, terms: Terms) -> Replaced:
    """Work out in a temporary table what is to be done for whom."""
    old = whose.currency or _currency_before(connection, str(whose.organization), terms.from_month)
    exponents = _exponents(connection, old, terms)
    dated, why_not_yet = _dated(connection, terms.from_month)
    windows = month_windows(connection, [dated or terms.from_month], zones_in_use(connection))
    zones = windows[dated or terms.from_month]
    numerator, denominator = terms.fraction(*exponents)
    connection.exec_driver_sql(_REPLACING,
        {
            "organization": whose.organization, "old": old, "new": terms.new, "from": terms.from_month.first_day,
            "before": terms.from_month.previous().first_day, "dated": None if dated is None else dated.first_day,
            "conversions": f"currency-replaced:____-__:{old}:___:out:%",
            "numerator": numerator, "denominator": denominator,
            "timezones": list(zones), "starts": [window.starts_at for window in zones.values()],
        },
    )  # fmt: skip
    row = connection.exec_driver_sql(_SUMS).one()
    shown = connection.exec_driver_sql(_SHOWN, {"shown": SHOWN}).all()
    left_out = connection.exec_driver_sql(_LEFT_OUT, {"shown": SHOWN}).all()
    replaced = Replaced(
        terms=terms, old=old, old_exponent=exponents[0], new_exponent=exponents[1], decided=row.decided, dated=dated,
        why_not_yet=why_not_yet, converted=row.converted, before=int(row.before), after=int(row.after),
        shown=tuple(Converted(**each._asdict()) for each in shown), already=row.already,
        left_out=tuple((each.external_ref, each.why) for each in left_out),
        left_out_count=row.left_out,
    )  # fmt: skip
    _require_lawful(connection, whose, replaced, row)
    return replaced


def _require_lawful(connection: Connection, whose: Whose, replaced: Replaced, row: Row[Any]) -> None:
    if not row.members and whose.organization is not None:
        raise PreconditionFailed(
            f"Organization {whose.organization!r} left before {replaced.terms.from_month} and is owed nothing in "
            f"{replaced.old}; there is nothing to replace."
        )
    if not row.members:
        raise InvalidInput(
            f"No organization has {replaced.old} as its currency in {replaced.terms.from_month.previous()}, the month "
            f"before; there is nothing to replace by {replaced.terms.new}."
        )
    if whose.organization is not None and replaced.left_out:
        raise PreconditionFailed(f"Organization {whose.organization!r} is not converted: {replaced.left_out[0][1]}.")
    if replaced.old == replaced.terms.new and not replaced.decided and not replaced.left_out:
        raise InvalidInput(
            f"{replaced.old} is the currency in {replaced.terms.from_month.previous()} already; name another one with "
            "--to."
        )
    if replaced.decided:
        _require_unsettled(connection, replaced.terms.from_month)


def _currency_before(connection: Connection, external_ref: str, month: Month) -> str:
    row = connection.exec_driver_sql(
        _CURRENCY, {"ref": external_ref, "before": month.previous().first_day}
    ).one_or_none()
    if row is None:
        raise UnknownOrganization(external_ref)
    return str(row.currency)


def _exponents(connection: Connection, old: str, terms: Terms) -> tuple[int, int]:
    known = {row.code: row for row in connection.exec_driver_sql(_CURRENCIES, {"codes": [old, terms.new]})}
    for code in (old, terms.new):
        if code not in known:
            raise InvalidInput(f"Currency {code!r} is unknown; those that are known stand in the table currency.")
    last_day: date | None = known[terms.new].last_day
    if last_day is not None and last_day < terms.from_month.first_day:
        raise InvalidInput(
            f"{terms.new} is not in use any more in {terms.from_month}: its last day was {last_day}; name another one "
            "with --to."
        )
    return known[old].exponent, known[terms.new].exponent


def _dated(connection: Connection, from_month: Month) -> tuple[Month | None, str]:
    """The month in which is converted, the first that is not closed; or None, and why not yet."""
    installation = read_installation(connection)
    being_closed, closed = month_being_closed(connection), last_closed(connection)
    if being_closed is not None:
        raise Conflict(f"{being_closed} is being closed; try again when it is.")
    month = installation.first_month if closed is None else closed.next()
    if month < from_month:
        return None, (
            f"{month} is not closed: what is left over is known when all months before {from_month} are, and converted "
            "by the same command"
        )
    if installation.payouts_from is not None and month < installation.payouts_from:
        return None, (
            f"{month} is before {installation.payouts_from}, the first month that is paid here: what is about it is "
            "settled elsewhere"
        )
    return month, ""


def _require_unsettled(connection: Connection, from_month: Month) -> None:
    begun = [one for one in read_periods(connection) if one.month >= from_month and _is_begun(connection, one)]
    if begun:
        state = "being settled" if begun[0].state is PeriodState.OPEN else begun[0].state.lower()
        raise PreconditionFailed(
            f"{begun[0].month} is {state}, so its currency stays; the first month from which another one can be in "
            f"force is {begun[-1].month.next()}."
        )


def _is_begun(connection: Connection, period: Period) -> bool:
    return period.state is not PeriodState.OPEN or running_pass(connection, period.month) is not None


def _bound(replaced: Replaced) -> dict[str, object]:
    terms = replaced.terms
    return {
        "old": replaced.old,
        "new": terms.new,
        "from": terms.from_month.first_day,
        "reference": f"currency-replaced:{replaced.dated}:{replaced.old}:{terms.new}",
        "reason": f"{terms.new} replaces {replaced.old}: 1 {terms.new} = {terms.rate.normalize():f} {replaced.old}",
    }


_CURRENCY = sql(__file__, "currency", currency=currency_of("%(before)s::date"))

_CURRENCIES = """
    SELECT code, exponent, last_day FROM currency WHERE code = ANY (%(codes)s::char(3)[])
"""

_REPLACING = sql(
    __file__,
    "replacing",
    pays_from=pays_from(),
    present=currency_of("%(from)s::date"),
    currency_before=currency_of("%(before)s::date"),
    not_in_the_books=sql(__file__, "not_in_the_books", read_months=READ_MONTHS, ledger_months=LEDGER_MONTHS),
)

_SUMS = """
    SELECT count(*) AS members, count(*) FILTER (WHERE decides) AS decided,
        count(*) FILTER (WHERE converts) AS converted, count(*) FILTER (WHERE is_done) AS already,
        count(why) AS left_out, coalesce(sum(remaining) FILTER (WHERE converts), 0) AS before,
        coalesce(sum(becomes) FILTER (WHERE converts), 0) AS after
    FROM replacing
"""

_SHOWN = """
    SELECT external_ref AS organization, remaining::bigint AS before, becomes::bigint AS after
    FROM replacing WHERE converts
    ORDER BY organization_id LIMIT %(shown)s::bigint
"""

_LEFT_OUT = """
    SELECT external_ref, why FROM replacing WHERE why IS NOT NULL
    ORDER BY organization_id LIMIT %(shown)s::bigint
"""

_DECIDE = """
    INSERT INTO organization_currency (organization_id, from_month, currency, decided_by)
    SELECT organization_id, %(from)s::date, %(new)s::char(3),
        %(by)s::text || ' (role ' || session_user || ')'
    FROM replacing WHERE decides
    ORDER BY organization_id
"""

# What is less than half a unit of the new currency is only taken out.
_CONVERT = """
    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, reason, occurred_at)
    SELECT %(reference)s::text || ':' || side.name || ':' || external_ref, organization_id, 'MANUAL',
        side.currency, side.amount::bigint, 0, 0, %(reason)s::text, starts_at
    FROM replacing CROSS JOIN LATERAL (VALUES
        (1, 'out', %(old)s::char(3), -remaining), (2, 'in', %(new)s::char(3), becomes)
    ) AS side (place, name, currency, amount)
    WHERE converts AND side.amount <> 0
    ORDER BY organization_id, side.place
"""
