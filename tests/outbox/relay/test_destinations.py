"""A destination that is slow, full or away is left alone as it needs it, and harms neither its events nor any other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.outbox.relay.world import (
    DELIVERED,
    GONE,
    REFUSED,
    THROTTLED,
    UNKNOWN,
    UNREACHED,
    Receiver,
    add,
    add_many,
    alerts,
    change,
    delivery,
    desert,
    event,
    route,
    run,
    states,
    stop,
)
from tests.support.sessions import becomes
from ticketflow_orch.outbox.backlog import read_backlog
from ticketflow_orch.outbox.delivery import Outcome
from ticketflow_orch.outbox.delivery.configuration import Allowance, Delivery
from ticketflow_orch.outbox.relay import Backoff, Patience, Round, is_due
from ticketflow_orch.outbox.relay.conditions import Condition, conditions

# Seconds in which a drain claims its first event, however busy the machine.
BUDGET = 5
LONG = Patience(first=timedelta(minutes=8), longest=timedelta(minutes=8))


def condition(engine: Engine, name: str = "there") -> Condition:
    with engine.connect() as connection:
        return conditions(connection).get(name, Condition())


def attempts_that_count(engine: Engine) -> set[int]:
    query = "SELECT DISTINCT attempts - attempts_forgiven FROM outbox_event WHERE aggregate_type = 'thing'"
    with engine.connect() as connection:
        return set(connection.execute(text(query)).scalars())


def wake(engine: Engine) -> None:
    """Let the time be over for which destinations are left alone."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE delivery_destination SET open_until = clock_timestamp()"))


# --- slow


def test_while_a_drain_waits_for_a_slow_destination_it_serves_the_others_past_its_budget(engine: Engine) -> None:
    slow, quick, hung = Receiver(), Receiver(), threading.Event()
    slow.answer = lambda _: DELIVERED if hung.wait(30) else REFUSED
    long = route("slow", limit=timedelta(seconds=30))
    to = Delivery({"Slow": long}, route("quick", limit=timedelta(seconds=1)),
        {"slow": lambda: slow, "quick": lambda: quick})  # fmt: skip
    add(engine, "slow", kind="Slow")
    with ThreadPoolExecutor(1) as pool:
        draining, begun = pool.submit(run, engine, to, budget=BUDGET), time.monotonic()
        assert becomes(lambda: len(slow.sent) == 1)
        time.sleep(max(0, begun + BUDGET + 0.5 - time.monotonic()))
        add(engine, "late")
        assert becomes(lambda: states(engine)["late"] == "DELIVERED")
        add(engine, "slow too", kind="Slow")
        time.sleep(1)
        hung.set()
        assert draining.result().delivered == 2
    assert states(engine)["slow too"] == "PENDING"


def test_lost_events_of_a_slow_destination_keep_no_others_waiting(engine: Engine) -> None:
    slow, quick, hung = Receiver(), Receiver(), threading.Event()
    slow.answer = lambda _: DELIVERED if hung.wait(60) else REFUSED
    to = Delivery({"Slow": route("slow")}, route("quick"), {"slow": lambda: slow, "quick": lambda: quick})
    for name in ("lost", "lost too"):
        add(engine, name, kind="Slow")
        desert(engine, name)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(run, engine, to)
        assert becomes(lambda: len(slow.sent) >= 1)
        add(engine, "quick")
        assert becomes(lambda: states(engine)["quick"] == "DELIVERED", patience=15)
        hung.set()
        draining.result()


# --- away


@pytest.mark.parametrize("answer", [UNREACHED, UNKNOWN, REFUSED], ids=lambda outcome: outcome.verdict.value)
def test_a_destination_that_fails_is_left_alone_and_then_tried_with_one_event(engine: Engine, answer: Outcome) -> None:
    receiver = Receiver(lambda _: answer)
    add_many(engine, 100, aggregates=100)
    run(engine, delivery(receiver), in_flight=5, patience_with=LONG)
    tried = len(receiver.sent)
    assert 5 <= tried <= 15
    assert condition(engine).is_open
    with engine.connect() as connection:
        assert not is_due(connection, delivery(), Round())
    run(engine, delivery(receiver), in_flight=5, patience_with=LONG)
    assert len(receiver.sent) == tried
    wake(engine)
    with engine.connect() as connection:
        assert is_due(connection, delivery(), Round())
    run(engine, delivery(receiver), in_flight=5, patience_with=LONG)
    assert len(receiver.sent) == tried + 1
    wake(engine)
    change_all_due(engine)
    receiver.answer = lambda _: DELIVERED
    assert run(engine, delivery(receiver), in_flight=5, patience_with=LONG).delivered == 100
    assert condition(engine) == Condition()


def change_all_due(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox_event SET available_at = clock_timestamp() WHERE state = 'PENDING'"))


def test_what_nothing_reached_has_used_up_no_attempt_and_keeps_its_turn(engine: Engine) -> None:
    add_many(engine, 100, aggregates=100)
    for _ in range(4):
        run(engine, delivery(Receiver(lambda _: UNREACHED), attempts=3), budget=0.3)
    assert set(states(engine).values()) == {"PENDING"}
    assert attempts_that_count(engine) == {0}
    with engine.connect() as connection:
        waits = connection.execute(text("SELECT max(available_at) > clock_timestamp() FROM outbox_event")).scalar_one()
    assert not waits


def test_one_bad_event_does_not_close_a_destination(engine: Engine) -> None:
    add_many(engine, 50, aggregates=50)
    receiver = Receiver(lambda message: UNKNOWN if message.payload["number"] == 1 else DELIVERED)
    drained = run(engine, delivery(receiver, attempts=20), in_flight=1)
    assert (drained.delivered, drained.dead) == (50, 1)  # with the alert
    assert not condition(engine).is_open


def test_an_event_that_tries_a_destination_for_the_others_and_is_bad_itself_does_not_keep_it_closed(
    engine: Engine,
) -> None:
    for number in range(5):
        add(engine, f"{number}")
    receiver = Receiver(lambda _: UNKNOWN)
    later = Backoff(base=timedelta(hours=1), cap=timedelta(hours=1))
    run(engine, delivery(receiver), backoff=later, patience_with=LONG)
    assert condition(engine).is_open
    change(engine, "0", "available_at = clock_timestamp()")
    add(engine, "good")
    receiver.answer = lambda message: DELIVERED if message.payload["name"] == "good" else UNKNOWN
    tried = 0
    while states(engine)["good"] != "DELIVERED":
        wake(engine)
        run(engine, delivery(receiver), backoff=later, patience_with=LONG)
        tried += 1
    assert tried <= 2
    assert not condition(engine).is_open


def test_an_event_that_never_reaches_a_destination_that_others_reach_does_not_keep_it_closed(engine: Engine) -> None:
    add(engine, "hangs up")
    add_many(engine, 50, aggregates=50)
    receiver = Receiver(lambda _: UNREACHED)
    run(engine, delivery(receiver), patience_with=LONG)
    assert condition(engine).is_open
    receiver.answer = lambda message: UNREACHED if message.payload["name"] == "hangs up" else DELIVERED
    # One try in 51 meets the event that never gets there.
    for _ in range(10):
        wake(engine)
        run(engine, delivery(receiver), budget=BUDGET, patience_with=LONG)
    assert Counter(states(engine).values()) == {"DELIVERED": 50, "PENDING": 1}


def test_a_lost_event_tries_a_destination_that_fails_where_no_other_can(engine: Engine) -> None:
    add_many(engine, 5, aggregates=5)
    run(engine, delivery(Receiver(lambda _: UNREACHED)), patience_with=LONG)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM outbox_event"))
    add(engine, "lost")
    desert(engine, "lost")
    run(engine, delivery(Receiver()), patience_with=LONG)
    assert states(engine) == {"lost": "INFLIGHT"}
    wake(engine)
    run(engine, delivery(Receiver()), patience_with=LONG)
    assert states(engine) == {"lost": "DELIVERED"}


def test_two_relays_try_a_destination_that_fails_with_one_event(engine: Engine) -> None:
    receiver, trying = Receiver(lambda _: UNREACHED), threading.Event()
    add_many(engine, 20, aggregates=20)
    run(engine, delivery(receiver), in_flight=5, patience_with=LONG)
    receiver.sent.clear()
    receiver.answer = lambda _: UNREACHED if trying.wait(20) else DELIVERED
    wake(engine)
    with ThreadPoolExecutor(2) as pool:
        drains = [pool.submit(run, engine, delivery(receiver), patience_with=LONG) for _ in range(2)]
        assert becomes(lambda: any(one.done() for one in drains))
        trying.set()
    assert len(receiver.sent) == 1


def test_a_destination_that_has_failed_for_long_is_told_of_once(engine: Engine) -> None:
    add_many(engine, 10, aggregates=10)
    soon = Patience(first=timedelta(0), longest=timedelta(0), alerted_after=timedelta(minutes=15))
    run(engine, delivery(Receiver(lambda _: UNREACHED)), budget=1, patience_with=soon)
    assert alerts(engine) == []
    with engine.begin() as connection:
        connection.execute(text("UPDATE delivery_destination SET failing_since = now() - interval '20 minutes'"))
    for _ in range(2):
        run(engine, delivery(Receiver(lambda _: UNREACHED)), budget=1, patience_with=soon)
    assert alerts(engine) == ["DestinationFailing"]


def test_a_destination_that_nothing_waits_for_any_more_fails_no_more(engine: Engine) -> None:
    add(engine, "a")
    run(engine, delivery(Receiver(lambda _: UNREACHED)), budget=1)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO delivery_destination (name, failing_since) VALUES ('of another name', clock_timestamp())")
        )
        assert {name for name, *_ in read_backlog(connection).failing} == {"there", "of another name"}
    change(engine, "a", "state = 'SUPPRESSED', available_at = NULL, ended_at = clock_timestamp()")
    with engine.connect() as connection:
        assert read_backlog(connection).failing == ()
    run(engine, delivery(Receiver()))
    assert [condition(engine, name) for name in ("there", "of another name")] == [Condition(), Condition()]


# --- too much


def test_the_rate_of_a_destination_is_kept_by_all_relays_together(engine: Engine) -> None:
    receiver = Receiver()
    to = replace(delivery(receiver), allowances={"there": Allowance(rate=40)})
    add_many(engine, 100, aggregates=100)
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        drains = [pool.submit(run, engine, to) for _ in range(2)]
        assert sum(one.result().delivered for one in drains) == 100
    assert 2.2 < time.monotonic() - began < 8


def test_a_destination_that_asks_to_be_left_alone_is_left_alone_as_a_whole(engine: Engine) -> None:
    receiver = Receiver(lambda _: replace(THROTTLED, retry_after=600.0))
    add_many(engine, 50, aggregates=50)
    assert run(engine, delivery(receiver), in_flight=4).left == 50
    assert len(receiver.sent) <= 8
    assert 500 < condition(engine).paused_for <= 600
    assert attempts_that_count(engine) == {0}


# --- alerts have a way of their own


def with_alerts(first: Receiver, second: Receiver, default: Receiver) -> Delivery:
    way = route("pager", otherwise=route("file"), attempts=None)
    makers: dict[str, Any] = {"pager": lambda: first, "file": lambda: second, "there": lambda: default}
    return Delivery({}, route(), makers, alerts=way)


@pytest.mark.parametrize("answer", [UNREACHED, UNKNOWN, GONE], ids=lambda outcome: outcome.verdict.value)
def test_an_alert_goes_another_way_while_its_own_destination_fails(engine: Engine, answer: Outcome) -> None:
    pager, file, there = Receiver(lambda _: answer), Receiver(), Receiver()
    to = with_alerts(pager, file, there)
    for number in range(6):
        add(engine, f"{number}", kind="OutboxEventDead")
    add(engine, "told")
    for _ in range(2):
        run(engine, to, in_flight=5, patience_with=LONG)
        change_all_due(engine)
    run(engine, to, in_flight=5, patience_with=LONG)
    assert set(states(engine).values()) == {"DELIVERED"}
    assert there.names == ["told"]
    assert {message.aggregate_id for message in file.sent} >= {f"{number}" for number in range(6)}


def test_an_alert_goes_another_way_while_its_own_destination_is_stopped(engine: Engine) -> None:
    pager, file, there = Receiver(), Receiver(), Receiver()
    stop(engine, "DESTINATION", "pager")
    add(engine, "dead", kind="OutboxEventDead")
    run(engine, with_alerts(pager, file, there))
    assert (pager.names, file.names) == ([], ["dead"])
    assert event(engine, "dead").destination == "file"


def test_an_alert_goes_its_own_way_where_that_is_open(engine: Engine) -> None:
    pager, file, there = Receiver(), Receiver(), Receiver()
    add(engine, "dead", kind="OutboxEventDead")
    run(engine, with_alerts(pager, file, there))
    assert (pager.names, file.names, there.names) == (["dead"], [], [])


# --- afterwards


def test_no_thread_is_left_when_a_drain_has_ended(engine: Engine) -> None:
    before = Counter(thread.name for thread in threading.enumerate())
    add(engine, "a")
    run(engine, delivery(Receiver()))
    assert Counter(thread.name for thread in threading.enumerate()) <= before
