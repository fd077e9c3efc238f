"""What the business kept back for a reason that may pass goes when it has, under the same id, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.outbox.relay.world import NOW, Receiver, add, change, delivery, event, run, states
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import EventKind, Prepared, Rendered, Suppressed
from ticketflow_orch.outbox.relay import reconsidering
from ticketflow_orch.outbox.relay.reconsidering import may_go, reconsider

LATER = NOW + timedelta(days=1)


def kinds(judge: Callable[[str], Prepared]) -> Mapping[str, EventKind]:
    def prepare(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
        return {message.event_id: judge(str(message.payload["name"])) for message in messages}

    return {"Told": EventKind(prepare)}


def keep_back(engine: Engine, *names: str, until: bool = True) -> None:
    for name in names:
        add(engine, name)
    run(engine, delivery(Receiver()), kinds(lambda _: Suppressed("not now", LATER if until else None)))


@pytest.mark.every_server
def test_what_was_kept_back_goes_once_its_reason_has_passed(engine: Engine) -> None:
    keep_back(engine, "a", "b")
    with engine.connect() as connection:
        assert may_go(connection, kinds(lambda _: Rendered(b"x")), NOW)
    free = kinds(lambda name: Rendered(b"x") if name == "a" else Suppressed("not now", LATER))
    before = event(engine, "a").event_id
    assert reconsider(engine, free, NOW) == 1
    assert states(engine) == {"a": "PENDING", "b": "SUPPRESSED"}
    receiver = Receiver()
    assert run(engine, delivery(receiver), free).delivered == 1
    assert [message.event_id for message in receiver.sent] == [before]
    assert reconsider(engine, free, NOW) == 0


def test_deliveries_do_not_wait_for_what_is_kept_back_to_be_looked_at(engine: Engine) -> None:
    keep_back(engine, "a")
    add(engine, "b")
    asked: list[str] = []

    def judge(name: str) -> Prepared:
        asked.append(name)
        return Rendered(b"x")

    assert run(engine, delivery(Receiver()), kinds(judge)).delivered == 1
    assert asked == ["b"]


@pytest.mark.parametrize(("until", "now"), [(False, NOW), (True, LATER)])
def test_what_may_never_be_sent_any_more_is_not_looked_at(engine: Engine, until: bool, now: object) -> None:
    keep_back(engine, "a", until=until)
    asked: list[str] = []

    def judge(name: str) -> Prepared:
        asked.append(name)
        return Rendered(b"x")

    assert reconsider(engine, kinds(judge), now) == 0  # type: ignore[arg-type]
    assert asked == []


def test_one_that_cannot_be_judged_stays_and_holds_up_no_other(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def judge(name: str) -> Prepared:
        if name == "bad":
            raise ZeroDivisionError("its row is odd")
        return Rendered(b"x")

    keep_back(engine, "one", "bad", "two")
    assert reconsider(engine, kinds(judge), NOW) == 2
    assert states(engine) == {"one": "PENDING", "bad": "SUPPRESSED", "two": "PENDING"}
    assert "cannot be looked at again" in caplog.text


def test_every_one_is_looked_at_however_many_there_are(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconsidering, "_CHUNK", 2)
    keep_back(engine, *"abcde")
    last = kinds(lambda name: Rendered(b"x") if name == "e" else Suppressed("not now", LATER))
    with engine.connect() as connection:
        assert may_go(connection, last, NOW)
    assert reconsider(engine, last, NOW) == 1


def test_where_too_many_are_kept_back_to_be_looked_at_in_a_tick_a_run_is_to_look(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconsidering, "_CHUNK", 2)
    monkeypatch.setattr(reconsidering, "_MOST", 4)
    keep_back(engine, *"abcde")
    asked: list[str] = []

    def judge(name: str) -> Prepared:
        asked.append(name)
        return Suppressed("not now", LATER)

    with engine.connect() as connection:
        assert may_go(connection, kinds(judge), NOW)
    assert asked == [*"abcd"]


def test_a_payout_that_is_not_to_be_asked_for_is_never_taken_up(engine: Engine) -> None:
    add(engine, "a", kind="PayoutRequested")
    change(engine, "a", "state = 'SUPPRESSED', ended_at = clock_timestamp(), available_at = NULL")
    with pytest.raises(DBAPIError, match="may not go from SUPPRESSED to PENDING"):
        change(engine, "a", "state = 'PENDING', ended_at = NULL, available_at = clock_timestamp()")


def test_to_ask_whether_any_may_go_writes_nothing(engine: Engine) -> None:
    keep_back(engine, "a")

    def prepare(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
        connection.execute(text("DELETE FROM alert"))
        connection.execute(text("INSERT INTO alert (kind, key) VALUES ('a', 'b')"))
        return {message.event_id: Rendered(b"x") for message in messages}

    with engine.begin() as connection:
        assert may_go(connection, {"Told": EventKind(prepare)}, NOW)
    reconsider(engine, {"Told": EventKind(prepare)}, NOW)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alert")).scalar_one() == 0
