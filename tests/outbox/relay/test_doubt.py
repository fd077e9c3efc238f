"""What may have arrived is sent again, held or looked up, as its route says and its receiver remembers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy import event as events
from sqlalchemy.exc import DBAPIError

from tests.outbox.relay.world import (
    DELIVERED,
    GONE,
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
    route,
    run,
    states,
)
from tests.support.alerted import told
from tests.support.cuts import commits_unanswered
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.outbox.delivery import Commit, FencedError, Message, Outcome, Verdict
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.relay import Backoff, completer
from ticketflow_orch.outbox.relay.executor import commit_of
from ticketflow_orch.outbox.relay.fetch import Wanted, claim_oldest, give_back

HOUR = timedelta(hours=1)


def answers(*outcomes: Outcome) -> Receiver:
    """A receiver that gives these answers, one an attempt."""
    left: Iterator[Outcome] = iter(outcomes)
    return Receiver(lambda _: next(left))


def test_a_receiver_that_never_forgets_is_sent_a_doubtful_event_again(engine: Engine) -> None:
    receiver = answers(UNKNOWN, DELIVERED)
    add(engine, "a")
    assert run(engine, delivery(receiver)).delivered == 1
    assert [message.doubtful for message in receiver.sent] == [False, True]


def test_within_the_time_that_a_receiver_remembers_a_doubtful_event_is_sent_again(engine: Engine) -> None:
    receiver = answers(UNKNOWN, DELIVERED)
    add(engine, "a")
    assert run(engine, delivery(receiver, remembers=HOUR, in_doubt="hold")).delivered == 1
    assert len(receiver.sent) == 2


def doubtful(engine: Engine) -> None:
    """An event that may have arrived two hours ago."""
    add(engine, "a")
    change(engine, "a", "doubtful_since = clock_timestamp() - interval '2 hours', attempts = 1")


def test_what_was_forgotten_is_held_for_a_person_and_told(engine: Engine) -> None:
    receiver = Receiver()
    doubtful(engine)
    assert run(engine, delivery(receiver, remembers=HOUR, in_doubt="hold")).in_doubt == 1
    assert (states(engine), receiver.sent) == ({"a": "IN_DOUBT"}, [])
    assert alerts(engine) == ["OutboxEventInDoubt"]


def test_what_was_forgotten_is_sent_again_where_the_route_says_so(engine: Engine) -> None:
    receiver = Receiver()
    doubtful(engine)
    assert run(engine, delivery(receiver, remembers=HOUR, in_doubt="resend")).delivered == 1
    assert len(receiver.sent) == 1


@pytest.mark.parametrize(
    ("known", "sent", "state"), [(DELIVERED, 0, "DELIVERED"), (REFUSED, 1, "DELIVERED"), (UNKNOWN, 0, "IN_DOUBT")]
)
def test_what_was_forgotten_is_looked_up_where_the_route_says_so(
    engine: Engine, known: Outcome, sent: int, state: str
) -> None:
    receiver = Receiver(known=lambda _: known)
    doubtful(engine)
    run(engine, delivery(receiver, remembers=HOUR, in_doubt="look_up", attempts=4))
    assert (len(receiver.sent), states(engine)) == (sent, {"a": state})
    assert len(receiver.asked) == (3 if state == "IN_DOUBT" else 1)


def test_mail_whose_answer_was_lost_is_in_doubt_at_once(engine: Engine) -> None:
    receiver = answers(UNKNOWN)
    add(engine, "a")
    assert run(engine, delivery(receiver, remembers=timedelta(0), in_doubt="hold")).in_doubt == 1
    assert event(engine, "a").doubtful_since is not None


@pytest.mark.parametrize(
    ("kind", "options", "state"),
    [
        ("Told", {"remembers": HOUR, "in_doubt": "look_up"}, "IN_DOUBT"),
        ("Told", {"remembers": HOUR, "in_doubt": "hold"}, "IN_DOUBT"),
        ("Told", {"remembers": HOUR, "in_doubt": "resend"}, "DELIVERED"),
        ("Told", {}, "DELIVERED"),
        ("PayoutRequested", {}, "IN_DOUBT"),
    ],
)
def test_a_doubt_about_one_destination_is_not_settled_at_another(
    engine: Engine, kind: str, options: dict[str, Any], state: str
) -> None:
    lost, other = Receiver(lambda _: UNKNOWN), Receiver(known=lambda _: REFUSED)
    add(engine, "a", kind=kind)
    run(engine, Delivery({}, route("old"), {"old": lambda: lost}), backoff=Backoff(base=HOUR))
    change(engine, "a", "available_at = clock_timestamp()")
    run(engine, Delivery({}, route("new", **options), {"new": lambda: other}))
    assert states(engine) == {"a": state}
    assert [message.aggregate_type for message in other.sent] == ["thing" if state == "DELIVERED" else "alert"]
    assert other.asked == []
    if state == "IN_DOUBT":
        assert event(engine, "a").last_error == "old may have it; its route leads to new by now."
        change(engine, "a", "state = 'PENDING', available_at = clock_timestamp(), doubtful_since = NULL")
        assert run(engine, Delivery({}, route("new"), {"new": lambda: other})).delivered == 1
        assert event(engine, "a").destination == "new"


def test_what_a_holder_that_went_away_may_have_sent_somewhere_is_not_sent_elsewhere(engine: Engine) -> None:
    for name, kind in (("plain", "Told"), ("payout", "PayoutRequested")):
        add(engine, name, kind=kind)
        desert(engine, name)
        change(engine, name, "destination = 'old'")
    run(engine, Delivery({}, route("new"), {"new": Receiver}))
    assert states(engine) == {"plain": "DELIVERED", "payout": "IN_DOUBT"}


@pytest.mark.parametrize(("step", "state"), [("before", "PENDING"), ("after", "IN_DOUBT")])
def test_a_transport_that_breaks_leaves_a_doubt_only_after_the_step(engine: Engine, step: str, state: str) -> None:
    class Breaking(Receiver):
        def send(self, message: Message, commit: Commit) -> Outcome:
            if step == "after":
                commit()
            raise ZeroDivisionError("oops")

    add(engine, "a")
    mail = delivery(Breaking(), remembers=timedelta(0), in_doubt="hold")
    run(engine, mail, backoff=Backoff(base=HOUR))
    assert states(engine) == {"a": state}
    assert event(engine, "a").last_error == "The transport broke: ZeroDivisionError: oops"


def test_a_step_that_cannot_be_written_down_is_not_taken(engine: Engine) -> None:
    add(engine, "a")
    with engine.begin() as connection:
        [claimed] = claim_oldest(connection, Wanted("us", 60, "there", ("Told",), (), ()), 1, 1).claimed
    busy = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with busy.connect(), pytest.raises(FencedError, match="did not say whether the lease is still ours"):
        commit_of(busy, claimed, route(remembers=HOUR), lease=60)()
    busy.dispose()


def test_a_mail_whose_step_was_written_down_without_an_answer_was_not_sent_and_goes_at_once(engine: Engine) -> None:
    add(engine, "a")
    receiver = Receiver()
    with commits_unanswered(engine, 1) as commits:
        drained = run(engine, delivery(receiver, remembers=timedelta(0), limit=HOUR))
    assert commits[0] > 1
    assert drained.delivered == 1
    assert receiver.names == ["a"]


def test_a_mail_whose_step_was_cut_goes_at_once(engine: Engine) -> None:
    cut: list[str] = []

    @events.listens_for(engine, "before_cursor_execute")
    def cut_once(connection: Connection, _: object, statement: str, *__: object) -> None:
        if "SET doubtful_since = coalesce" in statement and not cut:
            cut.append(statement)
            connection.connection.driver_connection.close()  # type: ignore[union-attr]

    add(engine, "a")
    receiver = Receiver()
    assert run(engine, delivery(receiver, remembers=timedelta(0), limit=HOUR)).delivered == 1
    assert cut
    assert receiver.names == ["a"]


def test_what_is_known_of_a_mail_outlasts_a_database_that_is_away_when_another_destination_gives_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shorter than the database is away: nobody has asked this drain to stop.
    monkeypatch.setattr(completer, "_WRITING_DOWN_AT_THE_END", 0.1)
    back = threading.Timer(1.5, open_to_all, [engine, True])

    def last_before_the_outage(_: Message) -> Outcome:
        open_to_all(engine, False)
        back.start()
        return DELIVERED

    add(engine, "a")
    mail = delivery(Receiver(last_before_the_outage), remembers=timedelta(0), limit=HOUR)
    with pytest.raises(DBAPIError):
        run(engine, mail, budget=0.1)
    back.join()
    assert states(engine) == {"a": "DELIVERED"}


def open_to_all(engine: Engine, is_open: bool) -> None:
    """Let the database of `engine` take connections, or end those that it has and take no more."""
    name = engine.url.database
    elsewhere = connect_engine(engine.url.set(database="postgres"), "pytest outage", connections=1)
    with elsewhere.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {is_open}"))
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
        )
    elsewhere.dispose()


@pytest.mark.parametrize("doubtful", [False, True])
def test_what_is_given_back_is_in_doubt_as_before(engine: Engine, doubtful: bool) -> None:
    add(engine, "a")
    if doubtful:
        change(engine, "a", "doubtful_since = now()")
    with engine.begin() as connection:
        [claimed] = claim_oldest(connection, Wanted("us", 60, "there", ("Told",), (), ()), 1, 1).claimed
    commit_of(engine, claimed, route(remembers=HOUR), lease=60)()
    with engine.begin() as connection:
        give_back(connection, [claimed])
    row = event(engine, "a")
    assert (row.state, row.doubtful_since is not None) == ("PENDING", doubtful)


def test_a_process_that_went_away_after_the_step_leaves_a_doubt_and_before_it_none(engine: Engine) -> None:
    mail = {"remembers": timedelta(0), "in_doubt": "hold"}
    for name in ("before", "after"):
        add(engine, name)
        desert(engine, name)
    change(engine, "after", "doubtful_since = clock_timestamp()")
    receiver = Receiver()
    run(engine, delivery(receiver, **mail))
    assert states(engine) == {"before": "DELIVERED", "after": "IN_DOUBT"}
    assert receiver.names == ["before"]


def test_the_step_is_written_down_before_the_receiver_has_anything(engine: Engine) -> None:
    seen: list[bool] = []

    def look(_: object) -> Outcome:
        seen.append(event(engine, "a").doubtful_since is not None)
        return REFUSED

    add(engine, "a")
    later = Backoff(base=HOUR)
    run(engine, delivery(Receiver(look), remembers=HOUR), backoff=later)
    assert seen == [True]
    # It said that it has not got it, so nothing is in doubt any more.
    assert event(engine, "a").doubtful_since is None


@pytest.mark.parametrize("answer", [REFUSED, REJECTED, GONE], ids=lambda outcome: outcome.verdict.value)
def test_a_refusal_does_not_clear_the_doubt_of_an_earlier_attempt(engine: Engine, answer: Outcome) -> None:
    add(engine, "a")
    change(engine, "a", "doubtful_since = clock_timestamp(), attempts = 1")
    run(engine, delivery(answers(answer), remembers=HOUR), backoff=Backoff(base=HOUR))
    assert event(engine, "a").doubtful_since is not None


def test_a_doubtful_event_whose_attempts_are_used_up_is_in_doubt_and_not_dead(engine: Engine) -> None:
    add(engine, "a")
    run(engine, delivery(answers(UNKNOWN, REFUSED), remembers=HOUR, attempts=2))
    assert states(engine) == {"a": "IN_DOUBT"}


def test_a_rejected_event_is_dead_and_told_once(engine: Engine) -> None:
    add(engine, "a")
    assert run(engine, delivery(Receiver(lambda _: REJECTED))).dead == 1
    row = event(engine, "a")
    assert (row.last_error, row.last_response, row.attempts) == (REJECTED.error, "400 no such thing", 1)
    run(engine, delivery(Receiver()))
    assert alerts(engine) == ["OutboxEventDead"]


def test_an_alert_that_dies_is_told_by_no_alert(engine: Engine) -> None:
    add(engine, "a")
    to = delivery(Receiver(lambda _: REJECTED))
    to = type(to)({}, to.routes["Told"], {"there": lambda: Receiver(lambda _: REJECTED)})
    assert run(engine, to).dead == 2
    assert alerts(engine) == ["OutboxEventDead"]


@pytest.mark.parametrize(("when_dead", "second"), [("block", "PENDING"), ("skip", "DELIVERED")])
def test_what_a_dead_event_does_to_its_aggregate_is_its_routes_to_say(
    engine: Engine, when_dead: str, second: str
) -> None:
    add(engine, "first", aggregate="one")
    add(engine, "second", aggregate="one")
    receiver = Receiver(lambda message: REJECTED if message.payload["name"] == "first" else DELIVERED)
    run(engine, delivery(receiver, when_dead=when_dead))
    assert states(engine) == {"first": "DEAD", "second": second}


@pytest.mark.parametrize("verdict", [Verdict.REJECTED, Verdict.GONE], ids=lambda verdict: verdict.value)
def test_what_is_alerted_repeats_no_address_that_a_receiver_named(engine: Engine, verdict: Verdict) -> None:
    add(engine, "a")
    run(engine, delivery(Receiver(lambda _: Outcome(verdict, "mx answered 550 5.1.1 <anna@example.com>: unknown."))))
    [(_, said)] = told(engine)
    assert (said.get("error") or said["reason"]) == "mx answered 550 5.1.1 <…@…>: unknown."


def test_a_destination_that_is_gone_is_stopped_and_told_once_and_its_events_are_unharmed(engine: Engine) -> None:
    for number in range(100):
        add(engine, f"{number}")
    receiver = Receiver(lambda _: GONE)
    run(engine, delivery(receiver), in_flight=2)
    assert len(receiver.sent) < 50
    assert set(states(engine).values()) == {"PENDING"}
    assert alerts(engine) == ["DestinationGone"]
    with engine.connect() as connection:
        stop = connection.execute(text("SELECT kind, name, reason FROM delivery_stop")).one()
        counted = connection.execute(text("SELECT max(attempts - attempts_forgiven) FROM outbox_event")).scalar_one()
    assert tuple(stop) == ("DESTINATION", "there", GONE.error)
    assert counted == 1  # of the alert, which was delivered
    assert run(engine, delivery(receiver)).left == 100
