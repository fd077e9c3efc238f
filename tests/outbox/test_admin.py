"""What people see of the outbox and decide about it, and what is refused; the commands that do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.conftest import run_sql
from tests.outbox.relay.world import DELIVERED, REJECTED, UNKNOWN, Receiver, add, change, delivery, event, run, states
from tests.support.decidable import put
from tests.support.homes import fresh_home, variables_for
from tests.support.rows import instant
from ticketflow_orch import cli
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox import admin, bulk
from ticketflow_orch.outbox.admin import Choice, Resolution
from ticketflow_orch.outbox.bulk import Which
from ticketflow_orch.outbox.delivery.handlers import EventKind, Recorded, Rendered


def refusal(engine: Engine, decide: object, *arguments: object) -> str:
    with pytest.raises(TicketflowError) as refused, transaction(engine) as connection:
        decide(connection, *arguments)  # type: ignore[operator]
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_dead_event_that_is_redriven_has_a_new_budget_and_the_same_id_and_bytes(engine: Engine) -> None:
    receiver = Receiver(lambda _: REJECTED)
    add(engine, "a")
    run(engine, delivery(receiver, attempts=2))
    with transaction(engine) as connection:
        assert admin.redrive(connection, Choice([receiver.sent[0].event_id])) == 1
    receiver.answer = lambda _: UNKNOWN
    run(engine, delivery(receiver, attempts=2))
    assert states(engine) == {"a": "DEAD"}
    assert [message.attempt for message in receiver.sent] == [1, 2, 3]
    assert len({(message.event_id, message.body) for message in receiver.sent}) == 1


def test_dead_events_are_redriven_by_type_and_by_when_they_died(engine: Engine) -> None:
    for name in ("early", "late"):
        put(engine, name, "DEAD")
    change(engine, "early", "last_attempt_at = '2026-06-01Z'")
    with transaction(engine) as connection:
        assert admin.redrive(connection, Choice(event_types=("Other",))) == 0
        assert admin.redrive(connection, Choice(since=instant("2026-06-02T00:00"))) == 1
        assert admin.redrive(connection, Choice(event_types=("Told",))) == 1


def test_what_is_not_dead_is_not_redriven_nor_is_everything_by_mistake(engine: Engine) -> None:
    pending, dead = put(engine, "pending", "PENDING"), put(engine, "dead", "DEAD")
    assert f"Event {pending} is PENDING" in refusal(engine, admin.redrive, Choice([dead, pending]))
    assert "Say which dead events" in refusal(engine, admin.redrive, Choice())
    assert states(engine)["dead"] == "DEAD"


def test_a_held_event_waits_until_it_is_released(engine: Engine) -> None:
    event_id = put(engine, "a", "PENDING")
    with transaction(engine) as connection:
        admin.hold(connection, event_id)
    assert run(engine, delivery()).delivered == 0
    assert "is HELD; only what is PENDING can be held" in refusal(engine, admin.hold, event_id)
    with transaction(engine) as connection:
        admin.release(connection, event_id)
    assert run(engine, delivery()).delivered == 1
    assert "is DELIVERED; only what is HELD can be released" in refusal(engine, admin.release, event_id)
    assert "There is no event" in refusal(engine, admin.release, uuid4())


@pytest.mark.parametrize("state", ["IN_DOUBT", "DEAD"])
@pytest.mark.parametrize(
    ("resolution", "becomes"), [("delivered", "DELIVERED"), ("again", "PENDING"), ("dropped", "SUPPRESSED")]
)
def test_what_is_stuck_is_resolved_by_a_person_and_the_business_learns_of_it(
    engine: Engine, state: str, resolution: Resolution, becomes: str
) -> None:
    learned: list[tuple[str, str | None]] = []

    def record(_: Connection, recorded: Sequence[Recorded]) -> None:
        learned.extend((one.state, one.outcome and one.outcome.error) for one in recorded)

    event_id = put(engine, "a", state)
    change(engine, "a", "doubtful_since = now()")
    with transaction(engine) as connection:
        admin.resolve(connection, {"Told": EventKind(recorder=record)}, event_id, resolution, "ana@desk")
    said = f"Resolved as {resolution} by ana@desk."
    assert (states(engine), event(engine, "a").last_error) == ({"a": becomes}, said)
    assert learned == {"PENDING": [], "DELIVERED": [("DELIVERED", said)], "SUPPRESSED": [("SUPPRESSED", None)]}[becomes]


def test_what_is_sent_again_by_a_persons_word_is_in_doubt_no_more(engine: Engine) -> None:
    event_id = put(engine, "a", "IN_DOUBT")
    change(engine, "a", "doubtful_since = now() - interval '1 day'")
    with transaction(engine) as connection:
        admin.resolve(connection, {}, event_id, "again", "ana")
    receiver = Receiver(lambda _: DELIVERED)
    assert run(
        engine, delivery(receiver, remembers=instant("2026-01-02T00:00") - instant("2026-01-01T00:00"))
    ).delivered


def test_only_what_is_stuck_is_resolved(engine: Engine) -> None:
    pending, dead, doubtful = (put(engine, state, state) for state in ("PENDING", "DEAD", "IN_DOUBT"))
    assert "cannot be resolved" in refusal(engine, admin.resolve, {}, pending, "dropped", "ana")
    assert "cannot be resolved" in refusal(engine, admin.resolve, {}, dead, "dead", "ana")
    with transaction(engine) as connection:
        admin.resolve(connection, {}, doubtful, "dead", "ana")
    assert states(engine)["IN_DOUBT"] == "DEAD"


def test_events_are_listed_by_state_type_and_aggregate(engine: Engine) -> None:
    for name, state in (("a", "PENDING"), ("b", "DEAD"), ("c", "HELD")):
        put(engine, name, state)
    add(engine, "d", kind="EventClosed")
    run(engine, delivery())
    with engine.connect() as connection:
        assert [one.aggregate_id for one in admin.list_events(connection)] == ["b", "c"]
        assert [one.aggregate_id for one in admin.list_events(connection, state="DEAD")] == ["b"]
        assert [one.aggregate_id for one in admin.list_events(connection, aggregate="c")] == ["c"]
        ended = admin.list_events(connection, state="DELIVERED", event_type="EventClosed")
        assert [one.aggregate_id for one in ended] == ["d"]
        assert len(admin.list_events(connection, limit=1)) == 1
    assert "'GONE' is no state of an event" in refusal(engine, lambda one: admin.list_events(one, state="GONE"))


# --- The commands


@pytest.fixture
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[Path]:
    """A home on a running server with a migrated database."""
    storage = server.url(f"{url.database}_dagster")
    with fresh_home(scratch, **variables_for(url, storage)) as home:
        yield home
    run_sql(server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")


def ticketflow(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(cli.app, ["outbox", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(*arguments: str) -> str:
    """What a command says against its input."""
    result = CliRunner().invoke(cli.app, ["outbox", *arguments])
    assert isinstance(result.exception, TicketflowError), (result.output, result.exception)
    return str(result.exception)


def test_what_is_due_is_delivered_from_a_laptop(engine: Engine, home: Path) -> None:
    add(engine, "a")
    assert "a " in ticketflow("list").splitlines()[1] + " "
    assert ticketflow("deliver") == "1 delivered\n"
    assert ticketflow("deliver") == "Nothing is due.\n"
    assert ticketflow("list") == "Everything is delivered.\n"
    assert (home / "outbox.jsonl").read_text().count("\n") == 1


def test_an_event_is_shown_with_its_attempts_its_answer_and_its_bytes(engine: Engine, home: Path) -> None:
    event_id = put(engine, "a", "DEAD")
    change(
        engine,
        "a",
        "body = convert_to('Subject: x' || chr(10) || chr(27) || '[2Jgone', 'UTF8'), last_response = '500 oh'",
    )
    shown = ticketflow("show", str(event_id))
    for line in ("state: DEAD", "attempts: 1, 1 in all", "answer: 500 oh", 'payload: {"name": "a"}', "  Subject: x"):
        assert line in shown.splitlines()
    assert "\x1b" not in shown


def test_the_bytes_that_are_shown_before_are_those_that_are_sent(engine: Engine) -> None:
    event_id = put(engine, "a", "PENDING")
    rendered = {"Told": EventKind(lambda _, messages: {one.event_id: Rendered(b"a mail") for one in messages})}
    with engine.connect() as connection:
        plain, mail = (admin.show(connection, kinds, event_id).body for kinds in ({}, rendered))
    receiver = Receiver()
    run(engine, delivery(receiver))
    assert ([message.body for message in receiver.sent], mail) == ([plain], None)


def test_commands_decide_about_events(engine: Engine, home: Path) -> None:
    held, dead, doubtful = (str(put(engine, state, state)) for state in ("PENDING", "DEAD", "IN_DOUBT"))
    assert "later ones of its aggregate wait" in ticketflow("hold", held)
    assert ticketflow("release", held) == f"Event {held} is due.\n"
    assert ticketflow("redrive", dead) == "1 event to be delivered again.\n"
    assert ticketflow("redrive", "--destination", "file") == "0 events to be delivered again.\n"
    assert ticketflow("resolve", doubtful, "--as", "dropped") == f"Event {doubtful} is resolved: dropped.\n"
    assert states(engine) == {"PENDING": "PENDING", "DEAD": "PENDING", "IN_DOUBT": "SUPPRESSED"}


def test_commands_stop_and_resume(engine: Engine, home: Path) -> None:
    assert "stopped" in ticketflow("stop", "--type", "EventClosed", "--reason", "a mistake in it")
    assert "stopped" in ticketflow("stop", "--destination", "file", "--reason", "moving")
    listed = ticketflow("stops").splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["destination", "event"]
    add(engine, "a", kind="EventClosed")
    assert ticketflow("deliver") == "1 left\n"
    ticketflow("resume", "--type", "EventClosed")
    ticketflow("resume", "--destination", "file")
    assert ticketflow("stops") == "Nothing is stopped.\n"
    assert ticketflow("deliver") == "1 delivered\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nonsense"), "'nonsense' is not an event's id"),
        (("show", "0" * 32), "There is no event"),
        (("list", "--state", "gone"), "'GONE' is no state"),
        (("redrive",), "Say which dead events"),
        (("redrive", "--destination", "nowhere"), "There is no destination 'nowhere'; choose one of file."),
        (("redrive", "--since", "yesterday"), "'yesterday' is not an instant"),
        (("resolve", "0" * 32, "--as", "lost"), "--as lost is unknown"),
        (("list", "--type", "EventsClosed"), "EventsClosed is no type of event; correct its name, perhaps to EventClo"),
        (("redrive", "--type", "Anything"), "Anything is no type of event; name one that docs/delivery.md lists."),
        (("stop", "--reason", "x", "--type", "PayoutRequest"), "PayoutRequest is no type of event; correct its name, "),
        (("stop", "--reason", "x"), "Name one of --type and --destination."),
        (("stop", "--reason", "x", "--destination", "nowhere"), "There is no destination 'nowhere'"),
        (("resume", "--type", "Told"), "Told is not stopped"),
    ],
)
def test_a_refused_command_says_why_in_one_sentence(home: Path, arguments: tuple[str, ...], said: str) -> None:
    message = refused(*arguments)
    assert said in message
    assert "\n" not in message


def test_many_events_are_chosen_by_type_age_and_error_and_counted_first(engine: Engine) -> None:
    for name, kind in (("a", "EventClosed"), ("b", "EventClosed"), ("c", "ReservationExpired")):
        put(engine, name, "DEAD", kind)
    change(engine, "a", "last_error = '550 No such user'")
    change(engine, "b", "last_error = 'timed out'")
    put(engine, "held", "HELD", "EventClosed")

    def counts(**chosen: Any) -> list[tuple[str, str, int]]:
        with engine.connect() as connection:
            found = bulk.count(connection, Which(("DEAD", "HELD"), **chosen))
        return [(kind.event_type, kind.state, kind.events) for kind in found]

    assert counts(event_type="EventClosed") == [("EventClosed", "DEAD", 2), ("EventClosed", "HELD", 1)]
    assert counts(error="no SUCH user") == [("EventClosed", "DEAD", 1)]
    assert counts(older_than=timedelta(0), error="timed out") == [("EventClosed", "DEAD", 1)]
    assert counts(older_than=timedelta(days=36_500)) == []
    with engine.connect() as connection, pytest.raises(TicketflowError, match="Say which events"):
        bulk.count(connection, Which(("DEAD",)))


def test_each_of_many_is_decided_about_as_if_it_were_the_only_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticketflow_orch.outbox.bulk._AT_ONCE", 2)
    for name in "abcde":
        put(engine, name, "PENDING", "EventClosed")
    taken = event(engine, "c").event_id

    def hold(connection: Connection, event_id: UUID) -> None:
        if event_id == taken:
            raise InvalidInput("Somebody was quicker.")
        admin.hold(connection, event_id)

    assert bulk.decide(engine, Which(("PENDING",), "EventClosed"), hold) == (4, ("Somebody was quicker.",))
    assert states(engine) == {"a": "HELD", "b": "HELD", "c": "PENDING", "d": "HELD", "e": "HELD"}


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        (("hold",), "PENDING", "HELD"),
        (("release",), "HELD", "PENDING"),
        (("drop",), "DEAD", "SUPPRESSED"),
        (("resolve", "--as", "again"), "IN_DOUBT", "PENDING"),
    ],
)
def test_the_command_for_many_counts_them_and_does_it_only_with_yes(
    engine: Engine, home: Path, command: tuple[str, ...], before: str, after: str
) -> None:
    for name in "ab":
        put(engine, name, before, "EventClosed")
    output = CliRunner().invoke(cli.app, ["outbox", *command, "--type", "EventClosed"]).output
    assert "2 events would be" in output
    assert "repeat the command with --yes to agree." in output
    assert states(engine) == {"a": before, "b": before}
    result = CliRunner().invoke(cli.app, ["outbox", *command, "--type", "EventClosed", "--yes"])
    assert (result.exit_code, "2 events" in result.output) == (0, True)
    assert states(engine) == {"a": after, "b": after}


def test_a_command_is_about_one_event_or_many(home: Path) -> None:
    refused = CliRunner().invoke(cli.app, ["outbox", "drop", str(uuid4()), "--type", "EventClosed"]).exception
    assert "not both" in str(refused)
    assert "Say which events" in str(CliRunner().invoke(cli.app, ["outbox", "hold"]).exception)
    wrong = CliRunner().invoke(cli.app, ["outbox", "hold", "--older-than", "3 days"]).exception
    assert "'3 days' is no length of time" in str(wrong)


def test_what_would_be_redriven_is_counted_and_left_as_it_is(engine: Engine, home: Path) -> None:
    put(engine, "a", "DEAD", "EventClosed")
    output = CliRunner().invoke(cli.app, ["outbox", "redrive", "--type", "EventClosed", "--dry-run"]).output
    assert output == "1 event would be delivered again.\n"
    assert states(engine) == {"a": "DEAD"}
