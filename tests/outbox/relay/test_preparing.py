"""What the business says about its events before they are sent, and what it learns of their ends."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.outbox.relay.world import (
    DELIVERED,
    REFUSED,
    REJECTED,
    UNKNOWN,
    Receiver,
    add,
    change,
    delivery,
    desert,
    event,
    run,
    states,
)
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import EventKind, Prepared, Recorded, Rendered, Suppressed
from ticketflow_orch.outbox.relay import Backoff


def name_of(message: Message) -> str:
    return str(message.payload["name"])


class Business:
    """Renders and suppresses as `judge` says, and remembers what it learned."""

    def __init__(self, judge: Callable[[Message], Prepared] | None = None, refuses: Sequence[str] = ()) -> None:
        self.judge = judge
        self.refuses = refuses
        self.asked: list[int] = []
        self.learned: list[tuple[str, str]] = []

    @property
    def kinds(self) -> Mapping[str, EventKind]:
        return {"Told": EventKind(self.prepare if self.judge else None, self.record)}

    def prepare(self, connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
        assert self.judge is not None
        self.asked.append(len(messages))
        return {message.event_id: self.judge(message) for message in messages}

    def record(self, connection: Connection, recorded: Sequence[Recorded]) -> None:
        for one in recorded:
            if one.state != "INFLIGHT" and name_of(one.message) in self.refuses:
                raise ZeroDivisionError("no")
            self.learned.append((name_of(one.message), one.state))


def numbered() -> Callable[[Message], Prepared]:
    """Renders what is to be rendered as the first, the second, the third …, and leaves what has bytes as it is."""
    renderings = itertools.count(1)
    return lambda message: Rendered(message.rendered or b"%d" % next(renderings))


@pytest.mark.every_server
@pytest.mark.parametrize("remembers", [None, timedelta(0)])
def test_what_was_refused_is_rendered_anew_and_what_may_have_arrived_stays_as_it_was(
    engine: Engine, remembers: timedelta | None
) -> None:
    answers = iter([REFUSED, REFUSED, UNKNOWN, REFUSED, DELIVERED])
    receiver = Receiver(lambda _: next(answers))
    add(engine, "a")
    to = delivery(receiver, remembers=remembers, in_doubt="resend")
    run(engine, to, Business(numbered()).kinds)
    assert [message.body for message in receiver.sent] == [b"1", b"2", b"3", b"3", b"3"]
    assert event(engine, "a").body == b"3"


@pytest.mark.parametrize(("remembers", "sent"), [(None, b"1"), (timedelta(0), b"2")])
def test_what_a_holder_left_who_went_away_is_as_it_was_unless_it_was_never_committed(
    engine: Engine, remembers: timedelta | None, sent: bytes
) -> None:
    receiver = Receiver()
    add(engine, "a")
    desert(engine, "a")
    change(engine, "a", "body = '1'")
    business = Business(lambda message: Rendered(message.rendered or b"2"))
    run(engine, delivery(receiver, remembers=remembers, in_doubt="resend"), business.kinds)
    assert [message.body for message in receiver.sent] == [sent]


def test_what_was_claimed_and_given_back_is_rendered_anew(engine: Engine) -> None:
    receiver = Receiver()
    add(engine, "a")
    change(engine, "a", "body = '0', attempts = 1, attempts_forgiven = 1")
    run(engine, delivery(receiver), Business(numbered()).kinds)
    assert [message.body for message in receiver.sent] == [b"1"]


@pytest.mark.parametrize("which", ["doubtful", "delivered"])
def test_the_bytes_that_somebody_may_have_are_refused_another_wording_by_the_database(
    engine: Engine, which: str
) -> None:
    add(engine, "doubtful")
    add(engine, "delivered")
    answers = {"doubtful": UNKNOWN, "delivered": DELIVERED}
    receiver = Receiver(lambda message: answers[name_of(message)])
    run(engine, delivery(receiver, remembers=timedelta(0)), Business(numbered()).kinds)
    with pytest.raises(DBAPIError, match="never changes the bytes that somebody may have"):
        change(engine, which, "body = 'other'")


def test_a_destination_that_takes_no_mails_gets_json_even_of_what_was_rendered_for_another(engine: Engine) -> None:
    mails, hook = Receiver(lambda _: REFUSED), Receiver()
    business = Business(lambda _: Rendered(b"From: us"))
    add(engine, "moved")
    run(engine, delivery(mails), business.kinds, backoff=Backoff(base=timedelta(hours=1)))
    change(engine, "moved", "available_at = clock_timestamp()")
    add(engine, "new")
    assert run(engine, delivery(hook, takes_mails=False), business.kinds).delivered == 2
    assert {message.body for message in mails.sent} == {b"From: us"}
    assert [json.loads(message.body)["data"] for message in hook.sent] == [{"name": "moved"}, {"name": "new"}]


def test_what_is_suppressed_is_not_sent_and_holds_up_nothing(engine: Engine) -> None:
    receiver = Receiver()
    add(engine, "off", aggregate="one")
    add(engine, "on", aggregate="one")
    business = Business(lambda message: Suppressed("no use") if name_of(message) == "off" else Rendered(b"x"))
    drained = run(engine, delivery(receiver), business.kinds)
    assert (drained.suppressed, drained.delivered) == (1, 1)
    assert states(engine) == {"off": "SUPPRESSED", "on": "DELIVERED"}
    assert event(engine, "off").last_error == "no use"
    assert business.learned == [("off", "SUPPRESSED"), ("on", "INFLIGHT"), ("on", "DELIVERED")]


def test_an_event_may_be_suppressed_between_two_attempts(engine: Engine) -> None:
    verdicts: list[Prepared] = [Rendered(b"x"), Suppressed("too late")]
    receiver = Receiver(lambda _: REFUSED)
    add(engine, "a")
    assert run(engine, delivery(receiver), Business(lambda _: verdicts.pop(0)).kinds).suppressed == 1
    assert len(receiver.sent) == 1


def test_the_business_is_asked_once_a_batch(engine: Engine) -> None:
    for number in range(20):
        add(engine, f"{number}")
    business = Business(lambda _: Rendered(b"x"))
    assert run(engine, delivery(Receiver()), business.kinds).delivered == 20
    assert business.asked == [20]


def test_an_event_that_cannot_be_prepared_holds_up_no_other_and_is_dead_in_the_end(engine: Engine) -> None:
    def judge(message: Message) -> Prepared:
        if name_of(message) == "bad":
            raise ZeroDivisionError("its row is odd")
        return Rendered(b"x")

    for name in ("one", "bad", "two"):
        add(engine, name)
    business = Business(judge)
    run(engine, delivery(Receiver(), attempts=2), business.kinds)
    assert states(engine) == {"one": "DELIVERED", "bad": "DEAD", "two": "DELIVERED"}
    assert event(engine, "bad").last_error == "It could not be prepared: ZeroDivisionError: its row is odd"
    assert ("bad", "DEAD") in business.learned


def test_an_answer_that_is_missing_counts_as_a_refusal(engine: Engine) -> None:
    add(engine, "a")
    kinds = {"Told": EventKind(preparer=lambda _connection, _messages: {})}
    assert run(engine, delivery(Receiver(), attempts=1), kinds).dead == 1
    assert "no answer about event" in event(engine, "a").last_error


def test_an_event_whose_attempts_are_used_up_is_not_even_prepared(engine: Engine) -> None:
    add(engine, "a")
    desert(engine, "a", attempts=3)
    business = Business(lambda _: Rendered(b"x"))
    assert run(engine, delivery(Receiver(), attempts=3), business.kinds).dead == 1
    assert (business.asked, business.learned) == ([], [("a", "DEAD")])


@pytest.mark.parametrize(("answer", "state"), [(DELIVERED, "DELIVERED"), (REJECTED, "DEAD")])
def test_the_business_learns_of_an_end_in_the_transaction_that_writes_it(
    engine: Engine, answer: object, state: str
) -> None:
    seen: list[str] = []

    def look(connection: Connection, recorded: Sequence[Recorded]) -> None:
        [one] = recorded
        inside = connection.execute(
            text("SELECT state FROM outbox_event WHERE event_id = :id"), {"id": one.message.event_id}
        )
        seen.append(f"{one.state} inside {inside.scalar_one()} outside {event(engine, 'a').state}")

    add(engine, "a")
    run(engine, delivery(Receiver(lambda _: answer)), {"Told": EventKind(recorder=look)})  # type: ignore[arg-type, return-value]
    assert seen == ["INFLIGHT inside INFLIGHT outside INFLIGHT", f"{state} inside {state} outside INFLIGHT"]


def test_an_end_that_cannot_be_recorded_is_not_written_and_others_are(engine: Engine) -> None:
    for name in ("one", "bad", "two"):
        add(engine, name)
    business = Business(refuses=["bad"])
    drained = run(engine, delivery(Receiver()), business.kinds)
    assert (drained.delivered, drained.unrecorded) == (2, 1)
    assert states(engine) == {"one": "DELIVERED", "bad": "INFLIGHT", "two": "DELIVERED"}


def test_what_was_claimed_when_the_business_lost_its_connection_goes_at_once_and_not_after_its_lease(
    engine: Engine,
) -> None:
    cut: list[int] = []

    def look(connection: Connection, _: object) -> None:
        if not cut:
            cut.append(1)
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    receiver = Receiver()
    for number in range(40):
        add(engine, f"{number}")
    assert run(engine, delivery(receiver), {"Told": EventKind(recorder=look)}).delivered == 40
    assert len(receiver.sent) == 40
    assert set(states(engine).values()) == {"DELIVERED"}
