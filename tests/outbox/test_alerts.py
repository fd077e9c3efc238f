"""Alerts: one for each subject, however often it occurs; sent again after a day, resolved when its cause is gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.outbox.relay.world import REJECTED, Receiver, add, delivery, run
from tests.support.alerted import NOW, kinds, note, told
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs import bad_rows
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.jobs.claims import claim, finish
from ticketflow_orch.jobs.firings import Firing, record
from ticketflow_orch.monitoring.passed_alerts import _CAUSES, resolve_passed
from ticketflow_orch.outbox import admin
from ticketflow_orch.outbox.alerts import (
    Alert,
    Severity,
    alert_once,
    repeat_alerts,
    resolve_by_hand,
    resolve_others,
    standing,
)


def overdue(since: str) -> Alert:
    return Alert("WorkOverdue", f"close_books {since}", {"job": "close_books", "due_since": since}, "close_books")


def age(engine: Engine, hours: float) -> None:
    execute(
        engine,
        """
        UPDATE alert_group SET first_at = first_at - CAST(:by AS interval), last_at = last_at - CAST(:by AS interval),
            told_at = told_at - CAST(:by AS interval)
        """,
        by=timedelta(hours=hours),
    )


def open_(engine: Engine) -> list[tuple[str, str, int]]:
    with engine.connect() as connection:
        return [(one.kind, one.subject, one.occurrences) for one in standing(connection)]


def look(engine: Engine) -> list[tuple[str, str]]:
    """What is found to be over."""
    with transaction(engine) as connection:
        return [(one.kind, one.subject) for one in resolve_passed(connection, NOW)]


@pytest.mark.every_server
def test_a_hundred_dead_events_of_one_destination_are_one_alert(engine: Engine) -> None:
    for number in range(100):
        add(engine, f"event-{number}")
    run(engine, delivery(Receiver(lambda _: REJECTED)))
    [(kind, said)] = told(engine)
    assert (kind, said["severity"], said["subject"]) == ("OutboxEventDead", "page", "there")
    assert open_(engine) == [("OutboxEventDead", "there", 100)]


def test_dead_events_are_over_when_the_last_of_them_is_sent_or_given_up_and_that_is_told_once(engine: Engine) -> None:
    for number in range(2):
        add(engine, f"event-{number}")
    run(engine, delivery(Receiver(lambda _: REJECTED)))
    assert look(engine) == []
    with transaction(engine) as connection:
        admin.redrive(connection, admin.Choice([], ["Told"], None))
    run(engine, delivery(Receiver()))
    assert look(engine) == [("OutboxEventDead", "there")]
    assert look(engine) == []
    over = told(engine)[-1]
    assert kinds(engine) == ["OutboxEventDead", "AlertResolved"]
    assert {name: over[1][name] for name in ("kind", "subject", "severity", "occurrences", "resolved_by")} == {
        "kind": "OutboxEventDead", "subject": "there", "severity": "page", "occurrences": 2,
        "resolved_by": "its cause is gone",
    }  # fmt: skip


def test_what_comes_back_after_it_was_over_is_told_anew(engine: Engine) -> None:
    assert note(engine, overdue("1"))
    with transaction(engine) as connection:
        assert len(resolve_others(connection, "WorkOverdue", (), NOW)) == 1
    assert note(engine, overdue("2"))
    assert kinds(engine) == ["WorkOverdue", "AlertResolved", "WorkOverdue"]


@pytest.mark.parametrize("recurs", [True, False])
def test_what_lasts_and_comes_back_is_told_anew_and_what_happened_once_is_not(engine: Engine, *, recurs: bool) -> None:
    row = Alert("RowLeftOut", "close_events row", {}, "close_events", recurs=recurs)
    assert note(engine, row)
    assert not note(engine, row)
    with transaction(engine) as connection:
        resolve_others(connection, "RowLeftOut", (), NOW)
    assert bool(note(engine, row)) == recurs
    assert not note(engine, row)
    assert kinds(engine) == ["RowLeftOut", "AlertResolved", *["RowLeftOut"] * recurs]


def test_an_occurrence_that_is_known_counts_once(engine: Engine) -> None:
    assert note(engine, overdue("1"))
    assert not note(engine, overdue("1"))
    assert not note(engine, overdue("2"))
    assert open_(engine) == [("WorkOverdue", "close_books", 2)]
    assert kinds(engine) == ["WorkOverdue"]


def test_what_stands_for_a_day_is_told_again_with_how_often_it_occurred(engine: Engine) -> None:
    note(engine, overdue("1"), overdue("2"))
    with transaction(engine) as connection:
        assert repeat_alerts(connection, NOW) == 0
    age(engine, 25)
    with transaction(engine) as connection:
        assert repeat_alerts(connection, NOW) == 1
        assert repeat_alerts(connection, NOW) == 0
    age(engine, 25)
    assert note(engine, overdue("3"))
    assert [said.get("occurrences") for _, said in told(engine)] == [None, 2, 3]


def test_what_nobody_need_look_at_is_not_told_again_and_fades(engine: Engine) -> None:
    note(engine, Alert("DuplicateFiring", "one", {}, "close_events"))
    age(engine, 25)
    with transaction(engine) as connection:
        assert repeat_alerts(connection, NOW) == 0
    assert look(engine) == []
    age(engine, 2)
    assert look(engine) == [("DuplicateFiring", "close_events")]


def test_the_most_urgent_comes_first(engine: Engine) -> None:
    note(engine, Alert("StaleClaim", "1", {}), Alert("RowLeftOut", "2", {}), Alert("PayoutContradicted", "3", {}))
    note(engine, Alert("RowLeftOut", "4", {}, severity=Severity.PAGE))
    with engine.connect() as connection:
        assert [one.subject for one in standing(connection)] == ["3", "4", "2", "1"]


@pytest.mark.every_server
def test_of_many_that_tell_of_one_subject_at_once_one_is_heard(engine: Engine) -> None:
    def tell(number: int) -> bool:
        with transaction(engine) as connection:
            return alert_once(connection, overdue(str(number % 10)), NOW)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(tell, range(40))) == 1
    assert kinds(engine) == ["WorkOverdue"]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alert")).scalar_one() == 10


def test_a_person_ends_what_nothing_else_shows_and_no_other(engine: Engine) -> None:
    note(engine, Alert("PayoutContradicted", "payout-1/REJECTED", {"reference": "payout-1"}, "payout-1"))
    with transaction(engine) as connection:
        [one] = standing(connection)
        resolve_by_hand(connection, one.id, NOW, "ada")
    assert open_(engine) == []
    assert told(engine)[-1][1]["resolved_by"] == "ada"
    with pytest.raises(TicketflowError, match=f"No alert {one.id} is open"), transaction(engine) as connection:
        resolve_by_hand(connection, one.id, NOW, "ada")


def test_a_stale_claim_is_over_when_its_job_completes_a_window(engine: Engine) -> None:
    note(engine, Alert("StaleClaim", "close_events key attempt 1", {}, "close_events"))
    assert look(engine) == []
    complete(engine, "close_events", {})
    assert look(engine) == [("StaleClaim", "close_events")]


def test_a_missed_window_is_over_when_its_job_is_started(engine: Engine) -> None:
    note(engine, Alert("WindowMissed", "close_events window", {}, "close_events"))
    assert look(engine) == []
    with transaction(engine) as connection:
        record(connection, Firing("close_events", NOW, "run-1"))
    assert look(engine) == [("WindowMissed", "close_events")]


def test_rows_that_are_left_out_are_over_when_the_last_of_a_job_is_done(engine: Engine) -> None:
    with transaction(engine) as connection:
        for number in (1, 2):
            bad_rows.note(connection, "close_events", BadRow(number, "no"), NOW)
    for number, over in ((1, []), (2, [("RowLeftOut", "close_events")])):
        with transaction(engine) as connection:
            bad_rows.end(connection, "close_events", [str(number)])
        assert look(engine) == over


def test_the_cause_of_every_kind_can_be_looked_for(engine: Engine) -> None:
    note(engine, *(Alert(kind, "2026-03 EUR", {}) for kind in _CAUSES))
    look(engine)


def complete(engine: Engine, job: str, result: dict[str, Any]) -> None:
    with engine.connect() as connection:
        number = connection.execute(text("SELECT count(*) FROM job_execution")).scalar_one()
    held = claim(engine, job, f"window {number}")
    with transaction(engine) as connection:
        finish(connection, held, result)  # type: ignore[arg-type]
