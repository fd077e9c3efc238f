"""Every attempt that did not deliver its event is kept for as long as the event is."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine, text

from tests.outbox.relay.world import (
    DELIVERED,
    REFUSED,
    THROTTLED,
    UNKNOWN,
    UNREACHED,
    Receiver,
    add,
    delivery,
    desert,
    event,
    run,
)
from ticketflow_orch.outbox.relay import Backoff


def attempts_of(engine: Engine, name: str) -> list[tuple[object, ...]]:
    query = """
        SELECT attempt, outcome, error, outbox_attempt.destination, outbox_attempt.owner IS NOT NULL
        FROM outbox_attempt JOIN outbox_event ON id = outbox_id WHERE payload ->> 'name' = :name ORDER BY attempt
    """
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query), {"name": name})]


def test_every_attempt_is_kept_with_its_answer_and_by_whom_it_was_made(engine: Engine) -> None:
    answers = iter([REFUSED, THROTTLED, UNREACHED, UNKNOWN, DELIVERED])
    add(engine, "a")
    run(engine, delivery(Receiver(lambda _: next(answers)), attempts=None), backoff=Backoff(timedelta(0), timedelta(0)))
    assert attempts_of(engine, "a") == [
        (1, "refused", REFUSED.error, "there", True),
        (2, "throttled", THROTTLED.error, "there", True),
        (3, "unreached", UNREACHED.error, "there", True),
        (4, "unknown", UNKNOWN.error, "there", True),
    ]
    row = event(engine, "a")
    assert (row.attempts, row.last_response, row.last_owner is not None) == (5, "200 thanks", True)


def test_an_attempt_whose_relay_went_away_is_kept_too(engine: Engine) -> None:
    add(engine, "a")
    desert(engine, "a")
    run(engine, delivery(Receiver()))
    assert [row[:2] for row in attempts_of(engine, "a")] == [(1, "lost")]


def test_attempts_leave_with_their_event(engine: Engine) -> None:
    answers = iter([REFUSED, DELIVERED])
    add(engine, "a")
    run(engine, delivery(Receiver(lambda _: next(answers))))
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox_event SET ended_at = now() - interval '60 days'"))
        connection.execute(text("SELECT outbox_prune(now() - interval '50 days', 10)"))
        assert connection.execute(text("SELECT count(*) FROM outbox_attempt")).scalar_one() == 0
