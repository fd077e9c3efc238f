"""A relay that stays delivers what comes as soon as it is committed, whatever happens to what it hears of it by."""

from __future__ import annotations

import threading
import time
from statistics import median

import pytest
from sqlalchemy import Engine, text

from tests.outbox.relay.world import (
    DELIVERED,
    GONE,
    LISTENING,
    REFUSED,
    UNREACHED,
    Receiver,
    add,
    add_many,
    count,
    delivery,
    resident,
    run,
    states,
)
from tests.support.cuts import fail
from tests.support.sessions import becomes
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.outbox.admin import resume
from ticketflow_orch.outbox.delivery import Message, Outcome


def test_what_is_committed_is_delivered_within_a_tenth_of_a_second(engine: Engine) -> None:
    arrived: dict[str, float] = {}

    def answer(message: Message) -> Outcome:
        arrived[message.payload["name"]] = time.monotonic()
        return DELIVERED

    committed: dict[str, float] = {}
    with resident(engine, Receiver(answer)) as end:
        for number in range(15):
            time.sleep(0.1)
            add(engine, f"{number}")
            committed[f"{number}"] = time.monotonic()
        assert becomes(lambda: len(arrived) == 15)
        assert end().delivered == 15
    assert median(arrived[name] - committed[name] for name in committed) <= 0.1


def test_what_it_does_not_hear_of_it_finds_a_second_later(engine: Engine) -> None:
    receiver = Receiver()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE outbox_event DISABLE TRIGGER outbox_event_announced"))
    with resident(engine, receiver):
        time.sleep(1)
        add(engine, "a")
        assert becomes(lambda: receiver.names == ["a"], patience=5)


def test_it_goes_on_and_listens_again_when_all_its_sessions_are_ended(engine: Engine) -> None:
    receiver = Receiver()
    ours = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND "
    with resident(engine, receiver) as end:
        add(engine, "before")
        assert becomes(lambda: states(engine) == {"before": "DELIVERED"})
        count(engine, ours + "pid <> pg_backend_pid()")
        add(engine, "after")
        assert becomes(lambda: states(engine)["after"] == "DELIVERED")
        assert becomes(lambda: count(engine, LISTENING) == 1)
        assert end().delivered >= 1
    assert sorted(set(receiver.names)) == ["after", "before"]


def test_a_destination_that_was_gone_is_served_again_when_it_is_resumed(engine: Engine) -> None:
    receiver = Receiver(lambda _: GONE)
    with resident(engine, receiver):
        add(engine, "a")
        assert becomes(lambda: count(engine, "SELECT count(*) FROM delivery_stop") == 1)
        receiver.answer = lambda _: DELIVERED
        with engine.begin() as connection:
            resume(connection, "DESTINATION", "there")
        assert becomes(lambda: states(engine)["a"] == "DELIVERED")


def test_what_could_not_be_written_down_of_a_destination_holds_nothing_back_for_ever(engine: Engine) -> None:
    together = threading.Barrier(10)

    def fails_with_all_others(_: Message) -> Outcome:
        together.wait(30)
        return UNREACHED

    receiver = Receiver(fails_with_all_others)
    add_many(engine, 10, aggregates=10)
    fail(engine, "INSERT", "delivery_destination")
    with resident(engine, receiver, in_flight=10):
        assert becomes(lambda: len(receiver.sent) == 10)
        receiver.answer = lambda _: DELIVERED
        assert becomes(lambda: set(states(engine).values()) == {"DELIVERED"})


def test_it_ends_in_order_when_it_is_told_to(engine: Engine) -> None:
    answered, receiver = threading.Event(), Receiver()
    receiver.answer = lambda _: DELIVERED if answered.wait(30) else REFUSED
    with resident(engine, receiver, in_flight=1, batch=2) as end:
        for name in ("begun", "not begun"):
            add(engine, name)
        assert becomes(lambda: len(receiver.sent) == 1)
        threading.Timer(1, answered.set).start()
        assert end().delivered == 1
    assert sorted(states(engine).values()) == ["DELIVERED", "PENDING"]


def test_it_ends_when_its_routes_are_not_the_databases_any_more(engine: Engine) -> None:
    def agreed(_: object) -> None:
        raise InvalidInput("Other routes.")

    with pytest.raises(TicketflowError, match="Other routes"):
        run(engine, delivery(Receiver()), resident=True, agreed=agreed)
