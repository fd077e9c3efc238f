"""What a drain delivers, in which order, how often, and what it writes down of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy import event as events

from tests.conftest import run_sql
from tests.outbox.relay.world import (
    AT_ONCE,
    DELIVERED,
    REFUSED,
    UNKNOWN,
    Receiver,
    add,
    add_many,
    change,
    delivery,
    event,
    route,
    run,
    states,
    stop,
)
from tests.support.sessions import becomes, two_sessions
from ticketflow_orch.outbox.delivery import Message, Outcome, Verdict
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.relay import Backoff


@pytest.mark.every_server
def test_what_is_due_is_delivered_once_and_a_second_drain_finds_nothing(engine: Engine) -> None:
    receiver = Receiver()
    for name in ("a", "b", "c"):
        add(engine, name)
    drained = run(engine, delivery(receiver))
    assert (drained.delivered, drained.left) == (3, 0)
    assert sorted(receiver.names) == ["a", "b", "c"]
    assert states(engine) == {"a": "DELIVERED", "b": "DELIVERED", "c": "DELIVERED"}
    assert run(engine, delivery(receiver)).delivered == 0
    assert len(receiver.sent) == 3


def test_an_event_that_was_delivered_says_when_and_what_was_answered(engine: Engine) -> None:
    add(engine, "a")
    run(engine, delivery(Receiver()))
    row = event(engine, "a")
    assert (row.attempts, row.last_response, row.last_error, row.owner) == (1, "200 thanks", None, None)
    assert row.first_attempt_at <= row.ended_at <= row.now


def test_the_body_is_the_type_the_instant_and_the_payload_and_the_same_on_each_attempt(engine: Engine) -> None:
    answers = iter([REFUSED, REFUSED, DELIVERED])
    receiver = Receiver(lambda _: next(answers))
    add(engine, "a")
    run(engine, delivery(receiver))
    [body] = {message.body for message in receiver.sent}
    assert [message.attempt for message in receiver.sent] == [1, 2, 3]
    # To the byte: a receiver compares them, and events outlive the version of this code that sent them first.
    assert body == b'{"type": "Told", "timestamp": "2026-06-01T00:00:00.500000Z", "data": {"name": "a"}}'


def test_events_of_an_aggregate_arrive_in_order_whatever_is_refused(engine: Engine) -> None:
    refused: Counter[str] = Counter()

    def answer(message: Message) -> Outcome:
        refused[message.payload["name"]] += 1
        return DELIVERED if refused[message.payload["name"]] > 1 else REFUSED

    receiver = Receiver(answer)
    add_many(engine, 60, aggregates=4)
    assert run(engine, delivery(receiver)).delivered == 60
    for aggregate in range(4):
        arrived = [message for message in receiver.sent if message.aggregate_id == f"Told{aggregate}"]
        numbers = [message.payload["number"] for message in arrived]
        assert numbers == sorted(numbers)
        assert len(numbers) == 30


def test_two_relays_at_once_deliver_everything_once_and_in_order(engine: Engine) -> None:
    receiver = Receiver()
    add_many(engine, 2000, aggregates=400)
    with ThreadPoolExecutor(2) as pool:
        drains = [pool.submit(run, engine, delivery(receiver), batch=50) for _ in range(2)]
        drained = [one.result() for one in drains]
    assert sum(one.delivered for one in drained) == 2000
    assert sum(one.overtaken for one in drained) == 0
    assert len(receiver.sent) == 2000
    numbers: dict[str, list[int]] = {}
    for message in receiver.sent:
        numbers.setdefault(message.aggregate_id, []).append(message.payload["number"])
    assert all(one == sorted(one) for one in numbers.values())


def test_an_event_that_is_committed_after_later_ones_were_delivered_is_delivered(engine: Engine) -> None:
    receiver = Receiver()
    with two_sessions(engine) as (late, _):
        late.run("""
            INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
            VALUES ('thing', 'late', 'Told', '{"name": "late"}', 'late', now())
        """)
        add(engine, "early")
        assert run(engine, delivery(receiver)).delivered == 1
        late.commit()
    assert run(engine, delivery(receiver)).delivered == 1
    assert receiver.names == ["early", "late"]


@pytest.mark.parametrize(("kind", "name"), [("EVENT_TYPE", "Told"), ("DESTINATION", "there")])
def test_what_is_stopped_waits_and_goes_on_when_it_is_resumed(engine: Engine, kind: str, name: str) -> None:
    other = Receiver()
    to = Delivery({"Else": route("elsewhere")}, route(), {"there": Receiver, "elsewhere": lambda: other})
    add(engine, "stopped")
    add(engine, "goes", kind="Else")
    stop(engine, kind, name)
    assert run(engine, to).left == 1
    assert states(engine) == {"stopped": "PENDING", "goes": "DELIVERED"}
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM delivery_stop"))
    assert run(engine, to).delivered == 1


def test_a_slow_destination_holds_up_no_other(engine: Engine) -> None:
    released = threading.Event()
    slow, quick = Receiver(lambda _: DELIVERED if released.wait(60) else REFUSED), Receiver()
    to = Delivery({"Slow": route("slow")}, route("quick"), {"slow": lambda: slow, "quick": lambda: quick})
    add_many(engine, 100, aggregates=100, kind="Slow")
    add_many(engine, 100, aggregates=100)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(run, engine, to, in_flight=2)
        assert becomes(lambda: list(states(engine).values()).count("DELIVERED") == 100 and len(slow.sent) == 2)
        released.set()
        assert draining.result().delivered == 200


def test_many_events_of_a_type_hold_up_no_other_type(engine: Engine) -> None:
    receiver = Receiver()
    to = Delivery({}, route(), {"there": lambda: receiver})
    add_many(engine, 1000, aggregates=1000, kind="Alpha")
    add_many(engine, 20, aggregates=20, kind="Zulu")
    assert run(engine, to, batch=50, in_flight=1).delivered == 1020
    assert [message.event_type for message in receiver.sent[:200]].count("Zulu") == 20


def test_what_is_claimed_and_then_stopped_is_not_begun_any_more(engine: Engine) -> None:
    begun: list[str] = []

    def answer(message: Message) -> Outcome:
        begun.append(message.aggregate_id)
        if len(begun) == 200:
            stop(engine, "EVENT_TYPE", "Told")
            # What is known of stops may be half a second old.
            time.sleep(2)
        return DELIVERED

    add_many(engine, 2000, aggregates=2000)
    drained = run(engine, delivery(Receiver(answer)), in_flight=1)
    assert (drained.delivered, drained.left) == (200, 1800)
    assert set(states(engine).values()) == {"DELIVERED", "PENDING"}


def test_events_of_one_aggregate_go_in_order_to_different_destinations(engine: Engine) -> None:
    both = Receiver()
    to = Delivery({"Else": route("elsewhere")}, route(), {"there": lambda: both, "elsewhere": lambda: both})
    for number in range(6):
        add(engine, f"{number}", aggregate="one", kind="Else" if number % 2 else "Told")
    assert run(engine, to).delivered == 6
    assert both.names == ["0", "1", "2", "3", "4", "5"]


def test_a_drain_ends_when_its_time_is_over_and_gives_back_what_it_has_not_begun(engine: Engine) -> None:
    receiver = Receiver(lambda _: time.sleep(0.05) or DELIVERED)
    add_many(engine, 500, aggregates=500)
    drained = run(engine, delivery(receiver), budget=2, in_flight=1)
    assert 0 < drained.delivered < 100
    assert drained.left == 500 - drained.delivered
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT state, max(attempts - attempts_forgiven) FROM outbox_event GROUP BY state")
        )
        assert dict(rows.all()) == {"DELIVERED": 1, "PENDING": 0}


@pytest.mark.parametrize(
    ("before", "tried"),
    [
        ("attempts = 0", False),
        ("attempts = 1, attempts_forgiven = 1", False),
        # Refused at once and sent for good again: all of its attempts are forgiven.
        ("attempts = 1, attempts_forgiven = 1, first_attempt_at = now(), last_attempt_at = now()", True),
        # A holder went away with it.
        ("attempts = 1, first_attempt_at = now()", True),
    ],
)
def test_what_is_given_back_was_tried_if_it_was_before(engine: Engine, before: str, tried: bool) -> None:
    add(engine, "a")
    change(engine, "a", before)
    for _ in range(2):
        assert run(engine, delivery(Receiver()), patience=0, budget=0.3).delivered == 0
    row = event(engine, "a")
    assert (row.state, row.first_attempt_at is not None) == ("PENDING", tried)
    assert row.attempts > 1


def test_a_stop_ends_a_drain_at_once(engine: Engine) -> None:
    ended = threading.Event()
    receiver = Receiver(lambda _: ended.set() or DELIVERED)
    add_many(engine, 200, aggregates=200)
    drained = run(engine, delivery(receiver), in_flight=1, stop=ended)
    assert drained.delivered == len(receiver.sent) < 5
    assert drained.seconds < 5


def test_a_connection_that_is_cut_ends_no_drain_and_repeats_no_delivery(engine: Engine) -> None:
    cut: list[int] = []

    @events.listens_for(engine, "before_cursor_execute")
    def cut_one(connection: Connection, _: object, statement: str, *__: object) -> None:
        if "SET state = 'DELIVERED'" in statement and not cut:
            cut.append(connection.connection.driver_connection.info.backend_pid)  # type: ignore[union-attr]
            run_sql(engine.url, f"SELECT pg_terminate_backend({cut[0]})")

    receiver = Receiver()
    add_many(engine, 400, aggregates=400)
    run(engine, delivery(receiver))
    assert cut
    assert len(receiver.sent) == 400
    assert set(states(engine).values()) == {"DELIVERED"}


def test_a_cut_of_all_connections_ends_no_drain_that_holds_what_it_has_not_sent(engine: Engine) -> None:
    cut: list[str] = []

    def cut_once(message: Message) -> Outcome:
        if len(receiver.sent) == 3 and not cut:
            cut.append(message.payload["name"])
            run_sql(engine.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            # Long enough for the producer to ask whether it may go on.
            time.sleep(1)
        return DELIVERED

    receiver = Receiver(cut_once)
    add_many(engine, 20, aggregates=20)
    assert run(engine, Delivery({}, route(), {"there": lambda: receiver}), in_flight=1).delivered == 20
    assert cut
    assert len(receiver.sent) == 20


def test_a_refused_event_waits_by_full_jitter_that_doubles_up_to_the_cap(engine: Engine) -> None:
    for number in range(60):
        add(engine, f"early-{number}")
        add(engine, f"late-{number}")
        change(engine, f"late-{number}", "attempts = 9")
    backoff = Backoff(base=timedelta(hours=10), cap=timedelta(hours=100))
    run(engine, delivery(Receiver(lambda _: replace(REFUSED, own_fault=True))), backoff=backoff)
    with engine.connect() as connection:
        waits = connection.execute(
            text("""
                SELECT attempts, min(wait), max(wait) FROM (
                    SELECT attempts, CAST(extract(epoch FROM available_at - clock_timestamp()) AS float) / 360 AS wait
                    FROM outbox_event WHERE state = 'PENDING'
                ) AS waiting GROUP BY attempts ORDER BY attempts
            """)
        ).all()
    early, late = waits
    assert -5 < early[1] < 30
    assert 70 < early[2] <= 100
    assert -5 < late[1] < 300
    assert 700 < late[2] <= 1000


def test_what_a_receiver_asks_for_is_a_lower_bound_of_the_wait_up_to_a_day(engine: Engine) -> None:
    add(engine, "hour")
    add(engine, "year")
    wishes = {"hour": 3600.0, "year": 365 * 86400.0}
    receiver = Receiver(
        lambda message: Outcome(Verdict.REFUSED, "Not now.", 429, retry_after=wishes[message.payload["name"]])
    )
    run(engine, delivery(receiver), backoff=Backoff(base=timedelta(seconds=5)))
    for name, least in (("hour", 3600), ("year", 86400)):
        row = event(engine, name)
        assert least - 5 < (row.available_at - row.now).total_seconds() <= least + 5


def test_an_answer_that_no_text_column_takes_is_written_down_as_far_as_it_can_be(engine: Engine) -> None:
    add(engine, "a")
    run(
        engine, delivery(Receiver(lambda _: Outcome(Verdict.DELIVERED, status=200, response="a\0b\ud800" + "x" * 9999)))
    )
    assert event(engine, "a").last_response.startswith("200 a\ufffdb?xxx")
    assert len(event(engine, "a").last_response) <= 2000


def test_a_transport_that_breaks_is_an_attempt_of_which_nothing_is_known(engine: Engine) -> None:
    def broken(_: Message) -> Outcome:
        raise ZeroDivisionError("oops")

    add(engine, "a")
    assert run(engine, delivery(Receiver(broken), attempts=1)).dead == 1
    assert event(engine, "a").last_error == "The transport broke: ZeroDivisionError: oops"


def test_a_batch_costs_two_statements_however_many_events_it_has(engine: Engine) -> None:
    add_many(engine, 400, aggregates=400)
    seen: list[str] = []

    @events.listens_for(engine, "before_cursor_execute")
    def remember(connection: object, cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    # A receiver that answers when the whole batch has come, so that it is one batch.
    together = threading.Barrier(16)
    receiver = Receiver(lambda _: DELIVERED if together.wait(60) >= 0 else UNKNOWN)
    drained = run(engine, delivery(receiver), batch=16, in_flight=16)
    assert drained.delivered == 400
    claims = [one for one in seen if "SET state = 'INFLIGHT'" in one]
    ends = [one for one in seen if "SET state = 'DELIVERED'" in one]
    others = [one for one in seen if one not in claims and one not in ends]
    assert len(ends) <= 2 * 400 / 16
    assert len(claims) <= 2 * 400 / 16 + 4
    # What a turn of the two producers costs by itself, and what they look at while time passes.
    assert len(others) <= 30 + 10 * drained.seconds


def test_a_claim_touches_no_index(engine: Engine) -> None:
    add_many(engine, 60, aggregates=60)
    refusal = replace(REFUSED, own_fault=True)
    run(engine, delivery(Receiver(lambda _: refusal)), backoff=Backoff(base=timedelta(hours=1)))
    # Sessions report what they did when they end.
    engine.dispose()

    def on_their_pages() -> int:
        with engine.connect() as connection:
            query = text("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox_event'")
            return int(connection.execute(query).scalar_one())

    # Of the two updates of an event the claim stays on its page; the end moves it in the index of what is due.
    assert becomes(lambda: on_their_pages() >= 50)
    assert on_their_pages() <= 60


def test_retries_at_once_come_to_an_end(engine: Engine) -> None:
    add(engine, "a")
    assert run(engine, delivery(Receiver(lambda _: REFUSED), attempts=3), backoff=AT_ONCE).dead == 1
