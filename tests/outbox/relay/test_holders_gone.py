"""Events whose holder went away: tried again, alone, dead in the end, and never finished by who was overtaken."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL

from tests.outbox.relay.world import (
    DELIVERED,
    REFUSED,
    REJECTED,
    UNKNOWN,
    Receiver,
    add,
    alerts,
    change,
    delivery,
    desert,
    event,
    run,
    states,
    stop,
)
from ticketflow_orch.outbox.admin import Choice, redrive
from ticketflow_orch.outbox.delivery import Message, Outcome
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay import Round, is_due

LEASES_ARE_OVER = """
    UPDATE outbox_event SET lease_until = least(lease_until, clock_timestamp()) WHERE state = 'INFLIGHT'
"""


@pytest.mark.every_server
def test_an_event_whose_holder_went_away_is_sent_when_the_lease_is_over(engine: Engine) -> None:
    receiver = Receiver()
    add(engine, "a")
    desert(engine, "a")
    change(engine, "a", "lease_until = clock_timestamp() + interval '1 hour'")
    assert run(engine, delivery(receiver)).delivered == 0
    change(engine, "a", "lease_until = clock_timestamp()")
    assert run(engine, delivery(receiver)).delivered == 1
    assert [(message.attempt, message.doubtful) for message in receiver.sent] == [(2, True)]


def test_events_whose_holders_went_away_wait_when_they_are_stopped_meanwhile(engine: Engine) -> None:
    receiver = Receiver(lambda _: stop(engine, "EVENT_TYPE", "Told") or DELIVERED)
    for name in ("a", "b"):
        add(engine, name)
        desert(engine, name)
    run(engine, delivery(receiver))
    assert receiver.names == ["a"]
    assert states(engine) == {"a": "DELIVERED", "b": "INFLIGHT"}


def test_events_whose_holders_went_away_are_sent_one_by_one_with_nothing_else_in_flight(engine: Engine) -> None:
    under_way: set[str] = set()
    company: dict[str, set[str]] = {}
    lock = threading.Lock()

    def answer(message: Message) -> Outcome:
        name = message.payload["name"]
        with lock:
            under_way.add(name)
            for one in under_way:
                company.setdefault(one, set()).update(under_way)
        time.sleep(0.02)
        with lock:
            under_way.discard(name)
        return DELIVERED

    for number in range(20):
        add(engine, f"fresh-{number}")
    for number in range(5):
        add(engine, f"left-{number}")
        desert(engine, f"left-{number}")
    assert run(engine, delivery(Receiver(answer))).delivered == 25
    assert all(company[f"left-{number}"] == {f"left-{number}"} for number in range(5))
    assert max(len(one) for one in company.values()) > 1


def test_an_event_whose_holders_all_went_away_is_dead_and_is_not_sent_again(engine: Engine) -> None:
    receiver = Receiver()
    add(engine, "a")
    desert(engine, "a", attempts=3)
    assert run(engine, delivery(receiver, attempts=3)).dead == 1
    row = event(engine, "a")
    assert row.last_error == "It was begun 3 times already; its route allows 3."
    assert (row.attempts - row.attempts_forgiven, receiver.sent) == (3, [])
    assert alerts(engine) == ["OutboxEventDead"]


@pytest.mark.parametrize("ends", [DELIVERED, REFUSED, REJECTED, UNKNOWN], ids=lambda outcome: outcome.verdict.value)
def test_who_was_overtaken_changes_nothing_whatever_the_answer(engine: Engine, ends: Outcome) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(_: Message) -> Outcome:
        began.set()
        assert go_on.wait(60)
        return ends

    add(engine, "a")
    with ThreadPoolExecutor(1) as pool:
        overtaken = pool.submit(run, engine, delivery(Receiver(slow), attempts=1))
        assert began.wait(60)
        # Its lease ended, another took the event and failed too.
        change(
            engine,
            "a",
            "state = 'PENDING', owner = NULL, lease_until = NULL",
            "state = 'INFLIGHT', owner = 'another', attempts = attempts + 1, "
            "lease_until = clock_timestamp() + interval '1 hour'",
        )
        before = event(engine, "a")
        go_on.set()
        drained = overtaken.result()
    assert drained.overtaken == 1
    assert (drained.delivered, drained.dead, drained.retried) == (0, 0, 0)
    assert event(engine, "a")[:-1] == before[:-1]
    assert alerts(engine) == []


def test_who_was_overtaken_before_it_sends_does_not_send_where_the_receiver_forgets(engine: Engine) -> None:
    class Overtaken(Receiver):
        def send(self, message: Message, commit: object) -> Outcome:
            change(engine, "a", "attempts = attempts + 1")
            return super().send(message, commit)  # type: ignore[arg-type]

    receiver = Overtaken()
    add(engine, "a")
    assert run(engine, delivery(receiver, remembers=timedelta(hours=1))).overtaken == 1
    assert receiver.sent == []


def test_what_was_lost_and_is_claimed_as_the_connection_is_cut_goes_at_once(engine: Engine) -> None:
    cut: list[int] = []

    def guard(connection: Connection, _: object) -> dict[UUID, str]:
        if not cut:
            cut.append(1)
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return {}

    add(engine, "a")
    desert(engine, "a")
    receiver = Receiver()
    assert run(engine, delivery(receiver, limit=timedelta(hours=1)), {"Told": EventKind(guard=guard)}).delivered == 1
    assert cut
    assert receiver.names == ["a"]


def test_a_claim_that_waited_for_too_long_is_given_back_unsent(engine: Engine) -> None:
    receiver = Receiver(lambda _: time.sleep(0.3) or DELIVERED)
    for number in range(6):
        add(engine, f"{number}")
    run(engine, delivery(receiver), in_flight=1, patience=0.2)
    with engine.connect() as connection:
        attempts = connection.execute(text("SELECT max(attempts - attempts_forgiven) FROM outbox_event")).scalar_one()
        numbers = connection.execute(text("SELECT max(attempts) FROM outbox_event")).scalar_one()
    assert attempts == 1
    assert numbers > 1


def test_an_event_that_kills_its_process_is_dead_after_its_attempts_while_others_flow_and_can_be_redriven(
    engine: Engine, url: URL
) -> None:
    add(engine, "poison")
    for number in range(30):
        add(engine, f"{number}")
    killed = 0
    for _ in range(40):
        worker = subprocess.run(
            [sys.executable, "-m", "tests.outbox.relay.poisoned", url.render_as_string(hide_password=False), "3"],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            timeout=60,
            check=False,
        )
        # A destination at which holders die is left alone for a moment.
        if worker.returncode == 0 and "INFLIGHT" not in states(engine).values():
            break
        killed += worker.returncode == -signal.SIGKILL
        assert worker.returncode in {0, -signal.SIGKILL}, worker.stderr.decode()
        with engine.begin() as connection:
            connection.execute(text(LEASES_ARE_OVER))
    assert killed == 3
    assert states(engine) == {"poison": "DEAD"} | {f"{number}": "DELIVERED" for number in range(30)}
    with engine.begin() as connection:
        assert redrive(connection, Choice(event_types=("Told",))) == 1
    receiver = Receiver()
    assert run(engine, delivery(receiver)).delivered >= 1
    assert receiver.names == ["poison"]


def test_what_was_left_behind_is_due_and_what_is_in_hand_is_not(engine: Engine) -> None:
    add(engine, "a")
    desert(engine, "a")
    with engine.connect() as connection:
        assert is_due(connection, delivery(), Round())
    change(engine, "a", "lease_until = clock_timestamp() + interval '1 hour'")
    with engine.connect() as connection:
        assert not is_due(connection, delivery(), Round())
