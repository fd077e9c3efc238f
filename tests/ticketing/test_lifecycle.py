"""What closing events and expiring reservations have in common: clocks, and saying beforehand what would be done."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.lifecycle import GRACE, MICROSECOND, NOW, paid, past, rules, states, told
from tests.support.rows import add_event, add_organization, add_reservation
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.ticketing.events import close_events, would_close
from ticketflow_orch.ticketing.reservations import (
    expire_reservations,
    would_expire,
)


def told_by(monkeypatch: pytest.MonkeyPatch, database_now: datetime, difference: float = 0) -> None:
    """What both clocks say, in place of those of this machine."""
    monkeypatch.setattr("ticketflow_orch.periods.two_clocks.clocks", lambda _: (database_now, difference))


def end(engine: Engine, which: str, **given: Any) -> object:
    """What came of ending what is over, reservations or events."""
    return {"expire": expire_reservations, "close": close_events}[which](engine, rules(**given))


@pytest.mark.parametrize("which", ["expire", "close"])
def test_what_cannot_be_undone_is_judged_by_the_earlier_of_both_clocks(
    engine: Engine, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=NOW - MICROSECOND)
    held = add_reservation(engine, evening, expires_at=NOW)
    told_by(monkeypatch, NOW - 2 * MICROSECOND, difference=59)
    end(engine, which)
    assert (states(engine, "event", evening), states(engine, "reservation", held)) == (["OPEN"], ["ACTIVE"])
    told_by(monkeypatch, NOW + timedelta(days=30))
    end(engine, which, now=NOW - 2 * MICROSECOND)
    assert (states(engine, "event", evening), states(engine, "reservation", held)) == (["OPEN"], ["ACTIVE"])
    end(engine, which)
    assert states(engine, "reservation", held) == ["EXPIRED"]


@pytest.mark.parametrize("which", ["expire", "close"])
@pytest.mark.parametrize("difference", [60.5, -60.5])
def test_where_both_clocks_differ_by_more_than_a_minute_nothing_is_ended(
    engine: Engine, which: str, difference: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    evening = past(engine, add_organization(engine), 1)
    held = add_reservation(engine, evening, expires_at=NOW - timedelta(days=1))
    told_by(monkeypatch, NOW, difference)
    with pytest.raises(TicketflowError, match=rf"more than 60 s {which} nothing; correct the clock that is wrong"):
        end(engine, which)
    assert (states(engine, "event", evening), states(engine, "reservation", held)) == (["OPEN"], ["ACTIVE"])


@pytest.mark.every_server
def test_what_would_be_done_is_what_is_done(engine: Engine) -> None:
    organization = add_organization(engine)
    over = [past(engine, organization, day) for day in (1, 2)]
    add_event(engine, organization, ends_at=NOW + timedelta(days=1))
    for number, event_id in enumerate(over):
        add_reservation(engine, event_id, public_ref=f"held-{number}", expires_at=NOW + timedelta(days=1))
    later = add_event(engine, organization, ends_at=NOW + timedelta(days=1))
    add_reservation(engine, later, public_ref="due", expires_at=NOW)
    add_reservation(engine, later, public_ref="stuck", expires_at=NOW, payment_started_at=NOW - GRACE)
    add_reservation(engine, later, public_ref="paying", expires_at=NOW, payment_started_at=NOW)
    paid(engine, expires_at=NOW - GRACE)

    closing, expiring = would_close(engine, rules()), would_expire(engine, rules())
    assert (closing.events, closing.reservations, closing.first[:2]) == (3, 2, ("over-2", "over-1"))
    assert (expiring.reservations, expiring.stuck, expiring.first) == (1, 2, ("paid", "due", "stuck"))
    assert told(engine) == []
    closed, expired = close_events(engine, rules()), expire_reservations(engine, rules())
    assert (closed.events, closed.reservations_expired) == (closing.events, closing.reservations)
    assert (expired.reservations, expired.stuck) == (expiring.reservations, expiring.stuck)
    assert (would_close(engine, rules()).events, would_expire(engine, rules()).reservations) == (0, 0)
