"""An event that fails is given up by its age, where its route has no limit of attempts, and not before it was tried."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from tests.outbox.relay.world import (
    REFUSED,
    UNKNOWN,
    UNREACHED,
    Receiver,
    add,
    change,
    delivery,
    desert,
    run,
    states,
)
from ticketflow_orch.outbox.delivery import Outcome
from ticketflow_orch.outbox.delivery.configuration import Route


def old(engine: Engine, name: str, **since: float) -> None:
    age = timedelta(**since).total_seconds()
    change(engine, name, f"attempts = 1, tried_since = clock_timestamp() - make_interval(secs => {age})")


@pytest.mark.parametrize("answer", [UNREACHED, UNKNOWN, REFUSED], ids=lambda outcome: outcome.verdict.value)
def test_an_event_is_given_up_by_its_age(engine: Engine, answer: Outcome) -> None:
    for name, days in (("young", 2.9), ("old", 3.1)):
        add(engine, name)
        old(engine, name, days=days)
        change(engine, name, "attempts = 500")
    run(engine, delivery(Receiver(lambda _: answer), attempts=None), budget=1)
    assert states(engine) == {"young": "PENDING", "old": "DEAD"}


def test_what_waited_for_long_untried_is_not_given_up_at_its_first_attempt(engine: Engine) -> None:
    add(engine, "a")
    change(engine, "a", "available_at = clock_timestamp() - interval '30 days'")
    run(engine, delivery(Receiver(lambda _: UNREACHED), attempts=None), budget=1)
    assert states(engine) == {"a": "PENDING"}


def test_an_old_event_that_arrives_is_delivered(engine: Engine) -> None:
    add(engine, "a")
    old(engine, "a", days=30)
    assert run(engine, delivery(Receiver())).delivered == 1


def test_an_event_that_is_given_up_in_doubt_is_in_doubt(engine: Engine) -> None:
    add(engine, "a")
    old(engine, "a", days=30)
    change(engine, "a", "doubtful_since = clock_timestamp()")
    run(engine, delivery(Receiver(lambda _: UNREACHED), attempts=None, remembers=timedelta(hours=1)), budget=1)
    assert states(engine) == {"a": "IN_DOUBT"}


def test_an_event_that_ends_whoever_holds_it_is_dead_without_a_limit_of_attempts(engine: Engine) -> None:
    receiver = Receiver()
    add(engine, "a")
    desert(engine, "a")
    change(engine, "a", "lost = 11")
    run(engine, delivery(receiver, attempts=None))
    assert (states(engine), receiver.sent) == ({"a": "DEAD"}, [])


def test_a_route_without_options_is_patient() -> None:
    assert Route("x", None, "block", "hold", None, timedelta(seconds=1)).gives_up_after == timedelta(days=3)
