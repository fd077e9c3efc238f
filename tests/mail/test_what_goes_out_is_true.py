"""What goes out says what is true then, to who holds the ticket; what was kept back goes when its reason passes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.mail.evenings import EVE, HOUR, START, add_evening, enable, reminded
from tests.mail.reading import text_of
from tests.mail.relayed import Mailbox, relay, window
from tests.outbox.relay.world import REFUSED, REJECTED, UNKNOWN
from tests.support.rows import add_reservation
from tests.support.sql_statements import execute
from ticketflow_orch.mail.suppression import Reason, clear, suppress
from ticketflow_orch.outbox import admin
from ticketflow_orch.ticketing.event_changes import changes_are_due

MINUTE = timedelta(minutes=1)
BOTH = {"24h": timedelta(hours=24), "7d": timedelta(days=7)}


def move(engine: Engine, by: timedelta) -> None:
    execute(engine, "UPDATE event SET starts_at = starts_at + :by, ends_at = ends_at + :by", by=by)


def states(engine: Engine, kind: str = "ReminderDue") -> list[str]:
    with engine.connect() as connection:
        query = text("SELECT state FROM outbox_event WHERE event_type = :kind ORDER BY id")
        return list(connection.execute(query, {"kind": kind}).scalars())


def event_ids(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        query = "SELECT event_id FROM outbox_event WHERE event_type = 'ReminderDue' ORDER BY id"
        return list(connection.execute(text(query)).scalars())


@pytest.mark.every_server
def test_what_a_server_refused_goes_out_with_the_new_hour_to_the_new_holder(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    box = Mailbox(REFUSED)
    relay(engine, EVE, box, attempts=1)
    execute(engine, "UPDATE reservation SET buyer_email = 'new.holder@example.com'")
    execute(engine, "UPDATE event SET starts_at = starts_at - interval '2 hours', venue = 'Arena Sur'")
    with engine.begin() as connection:
        admin.redrive(connection, admin.Choice(event_types=["ReminderDue"]))
    relay(engine, EVE + HOUR, box)
    [_, mail] = box.mails
    assert mail["To"] == "new.holder@example.com"
    assert "6:00\u202fPM (Europe/Madrid" in text_of(mail)
    assert "Arena Sur" in text_of(mail)


def test_what_may_have_arrived_is_sent_again_byte_by_byte_under_the_same_message_id(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    box = Mailbox(UNKNOWN)
    relay(engine, EVE, box, in_doubt="resend")
    first, second = box.sent
    assert first.body == second.body
    execute(engine, "UPDATE reservation SET buyer_email = 'new.holder@example.com'")
    assert box.mails[0]["Message-ID"] == box.mails[1]["Message-ID"]


def test_what_may_have_arrived_is_not_repeated_once_it_is_no_longer_so_and_the_change_is_told(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    box = Mailbox(UNKNOWN)
    relay(engine, EVE, box, in_doubt="resend", attempts=1)
    with engine.begin() as connection:
        admin.redrive(connection, admin.Choice(event_types=["ReminderDue"]))
    move(engine, -HOUR)
    assert relay(engine, EVE, box, in_doubt="resend").suppressed == 1
    assert window(engine, EVE + HOUR).changed == 1
    relay(engine, EVE + HOUR, box, in_doubt="resend")
    assert [subject.partition(":")[0] for _, subject in box.subjects] == ["Reminder", "Changed"]


def test_what_somebody_says_did_not_arrive_is_rendered_anew(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    box = Mailbox(UNKNOWN)
    relay(engine, EVE, box)
    execute(engine, "UPDATE reservation SET buyer_email = 'new.holder@example.com'")
    [event_id] = event_ids(engine)
    with engine.begin() as connection:
        admin.resolve(connection, {}, event_id, "again", "somebody")
    relay(engine, EVE + HOUR, box)
    assert [mail["To"] for mail in box.mails] == ["buyer1@example.com", "new.holder@example.com"]


def test_a_date_that_was_mistyped_for_four_minutes_loses_no_reminder(engine: Engine) -> None:
    enable(engine)
    add_evening(engine, tickets=2)
    assert window(engine, EVE).queued == 2
    box = Mailbox()
    move(engine, timedelta(days=30))
    assert relay(engine, EVE + MINUTE, box).suppressed == 2
    before = event_ids(engine)
    move(engine, -timedelta(days=30))
    assert window(engine, EVE + 15 * MINUTE).taken_up == 2
    assert relay(engine, EVE + 15 * MINUTE, box).delivered == 2
    assert event_ids(engine) == before
    assert box.subjects == [
        ("buyer1@example.com", "Reminder: Aida, Tuesday, June 2, 2026"),
        ("buyer2@example.com", "Reminder: Aida, Tuesday, June 2, 2026"),
    ]
    assert [window(engine, EVE + hours * HOUR).taken_up for hours in (1, 2, 23)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("UPDATE reservation SET buyer_email = 'bob@example,com'", "UPDATE reservation SET buyer_email = 'bob@x.es'"),
        # Mistyped into the past, the event had begun by then.
        (
            "UPDATE event SET starts_at = '2026-06-01 22:30Z'",
            "UPDATE event SET starts_at = '2026-06-02 18:30Z'",
        ),
        ("UPDATE event SET timezone = 'Pacific/Auckland'", "UPDATE event SET timezone = 'Europe/Madrid'"),
    ],
)
def test_what_is_corrected_in_time_is_sent_and_named_right(engine: Engine, wrong: str, right: str) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    execute(engine, wrong)
    box = Mailbox()
    assert relay(engine, EVE + 5 * HOUR, box).suppressed == 1
    assert window(engine, EVE + 5 * HOUR).taken_up == 0
    execute(engine, right)
    assert window(engine, EVE + 6 * HOUR).taken_up == 1
    relay(engine, EVE + 6 * HOUR, box)
    assert [subject for _, subject in box.subjects] == ["Reminder: Aida, Tuesday, June 2, 2026"]


def test_a_start_that_was_mistyped_into_the_past_is_missed_by_nobody_once_it_is_corrected(engine: Engine) -> None:
    enable(engine)
    add_evening(engine, starts_at=START - 10 * HOUR)
    noon = START - 6 * HOUR
    assert window(engine, noon).missed == 1
    move(engine, 10 * HOUR)
    assert window(engine, noon + 15 * MINUTE).queued == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE reservation SET status = 'CANCELLED', cancelled_at = now()",
        "UPDATE event SET status = 'CANCELLED'",
    ],
)
def test_what_can_never_be_right_again_is_not_looked_at_again(engine: Engine, change: str) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    execute(engine, change)
    relay(engine, EVE, Mailbox())
    with engine.connect() as connection:
        assert connection.execute(text("SELECT reconsider_until FROM outbox_event")).scalar_one() is None


def test_what_is_suppressed_can_be_sent_by_hand_if_nothing_keeps_it_back_and_dropped_for_good(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    execute(engine, "UPDATE reservation SET buyer_email = 'nobody'")
    box = Mailbox()
    relay(engine, EVE, box)
    [event_id] = event_ids(engine)
    with engine.begin() as connection:
        admin.resolve(connection, {}, event_id, "again", "somebody")
    assert relay(engine, EVE, box).suppressed == 1
    execute(engine, "UPDATE reservation SET buyer_email = 'buyer@example.com'")
    with engine.begin() as connection:
        admin.resolve(connection, {}, event_id, "dropped", "somebody")
    assert window(engine, EVE + HOUR).taken_up == 0
    with engine.begin() as connection:
        admin.resolve(connection, {}, event_id, "again", "somebody")
    assert relay(engine, EVE + HOUR, box).delivered == 1


def test_an_address_that_bounced_gets_nothing_until_it_is_cleared_and_then_what_was_kept_back(engine: Engine) -> None:
    enable(engine)
    add_evening(engine, tickets=2)
    with engine.begin() as connection:
        suppress(connection, "Buyer1@EXAMPLE.com", Reason.BOUNCE, "550 5.1.1 no such user", by="somebody")
    window(engine, EVE)
    box = Mailbox()
    assert (relay(engine, EVE, box).suppressed, box.subjects[0][0]) == (1, "buyer2@example.com")
    with engine.begin() as connection:
        assert clear(connection, "buyer1@example.com", "somebody") == 1
    assert window(engine, EVE + HOUR).taken_up == 1
    assert relay(engine, EVE + HOUR, box).delivered == 1


def test_of_two_kinds_that_are_due_at_once_the_nearest_is_sent(engine: Engine) -> None:
    enable(engine, BOTH)
    add_evening(engine, starts_at=START + timedelta(days=20), ends_at=START + timedelta(days=20, hours=2))
    assert window(engine, EVE, BOTH).queued == 0
    move(engine, -timedelta(days=20))
    done = window(engine, EVE + HOUR, BOTH)
    assert (done.queued, done.skipped) == (1, 1)
    box = Mailbox()
    relay(engine, EVE + HOUR, box)
    assert [message.payload["kind"] for message in box.sent] == ["24h"]


def test_a_reminder_of_the_week_before_that_waits_for_a_server_gives_way_to_the_eve_s(engine: Engine) -> None:
    enable(engine, BOTH)
    add_evening(engine)
    assert window(engine, START - timedelta(days=7), BOTH).queued == 1
    assert window(engine, EVE, BOTH).queued == 1
    box = Mailbox()
    relay(engine, EVE, box)
    assert [message.payload["kind"] for message in box.sent] == ["24h"]
    assert states(engine) == ["SUPPRESSED", "DELIVERED"]


@pytest.mark.parametrize(("answer", "state"), [(UNKNOWN, "IN_DOUBT"), (REJECTED, "DEAD")])
def test_the_week_before_s_reminder_in_doubt_or_dead_does_not_hold_back_the_eve_s(
    engine: Engine, answer: Any, state: str
) -> None:
    enable(engine, BOTH)
    add_evening(engine)
    window(engine, START - timedelta(days=7), BOTH)
    box = Mailbox(answer)
    relay(engine, START - timedelta(days=7), box)
    window(engine, EVE, BOTH)
    relay(engine, EVE, box)
    assert states(engine) == [state, "DELIVERED"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE event SET starts_at = starts_at - interval '2 hours'", "6:00\u202fPM (Europe/Madrid"),
        ("UPDATE event SET venue = 'Arena Sur'", "Arena Sur"),
    ],
)
@pytest.mark.every_server
def test_who_was_reminded_is_told_once_of_another_hour_or_place(engine: Engine, change: str, said: str) -> None:
    enable(engine)
    add_evening(engine, tickets=3)
    window(engine, EVE)
    box = Mailbox(REJECTED)
    relay(engine, EVE, box)
    execute(engine, change)
    changed = [window(engine, EVE + hours * HOUR, chunk_size=1).changed for hours in (1, 2, 3)]
    # Those whose server wants nothing of us got nothing before.
    assert changed == [2, 0, 0]
    assert relay(engine, EVE + HOUR, box).delivered == 2
    last = box.mails[-1]
    assert last["Subject"] == "Changed: Aida, Tuesday, June 2, 2026"
    assert said in text_of(last)


def test_a_change_before_the_reminder_went_or_before_the_last_day_is_told_by_the_reminder(engine: Engine) -> None:
    box = reminded(engine, START - timedelta(days=7), BOTH)
    move(engine, -HOUR)
    assert window(engine, START - timedelta(days=3), BOTH).changed == 0
    window(engine, EVE - HOUR, BOTH)
    move(engine, -HOUR)
    assert window(engine, EVE, BOTH).changed == 0
    relay(engine, EVE, box)
    assert "6:00\u202fPM" in text_of(box.mails[-1])
    assert [window(engine, EVE + hours * HOUR, BOTH).changed for hours in (1, 2)] == [0, 0]


def test_where_no_kind_reminds_later_a_change_is_told_however_early(engine: Engine) -> None:
    week = {"7d": timedelta(days=7)}
    reminded(engine, START - timedelta(days=7), week)
    move(engine, -HOUR)
    assert window(engine, START - timedelta(days=3), week).changed == 1


def test_a_change_that_is_taken_back_before_it_went_is_told_once_and_as_it_stands(engine: Engine) -> None:
    box = reminded(engine)
    move(engine, -2 * HOUR)
    assert window(engine, EVE + HOUR).changed == 1
    move(engine, HOUR)
    assert window(engine, EVE + 2 * HOUR).changed == 1
    relay(engine, EVE + 2 * HOUR, box)
    assert [subject for _, subject in box.subjects] == [
        "Reminder: Aida, Tuesday, June 2, 2026",
        "Changed: Aida, Tuesday, June 2, 2026",
    ]
    assert "7:00\u202fPM" in text_of(box.mails[-1])
    assert states(engine, "ReminderChanged") == ["SUPPRESSED", "DELIVERED"]


def test_who_was_told_another_day_meanwhile_is_told_when_the_event_is_back_on_its_own(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    box = Mailbox()
    for by in (timedelta(0), -22 * HOUR, 22 * HOUR):
        move(engine, by)
        window(engine, EVE)
        relay(engine, EVE, box)
    assert [subject for _, subject in box.subjects] == [
        "Reminder: Aida, Tuesday, June 2, 2026",
        "Reminder: Aida, Monday, June 1, 2026",
        "Changed: Aida, Tuesday, June 2, 2026",
    ]
    move(engine, HOUR)
    assert [window(engine, EVE).changed for _ in range(2)] == [1, 0]


def test_what_was_only_to_be_said_of_another_day_keeps_no_change_from_being_told(engine: Engine) -> None:
    box = reminded(engine)
    move(engine, -22 * HOUR)
    window(engine, EVE)
    assert states(engine) == ["DELIVERED", "PENDING"]
    move(engine, 21 * HOUR)
    assert [window(engine, EVE).changed for _ in range(2)] == [1, 0]
    relay(engine, EVE, box)
    assert [subject for _, subject in box.subjects] == [
        "Reminder: Aida, Tuesday, June 2, 2026",
        "Changed: Aida, Tuesday, June 2, 2026",
    ]


def test_a_change_is_looked_at_again_while_a_reminder_is_sent_of_which_nobody_has_noted_what_it_says(
    engine: Engine,
) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    sending = "owner = 'relay', attempts = 1, lease_until = clock_timestamp() + interval '1 minute'"
    execute(engine, f"UPDATE outbox_event SET state = 'INFLIGHT', {sending}")
    move(engine, -HOUR)
    window(engine, EVE)
    with engine.connect() as connection:
        assert changes_are_due(connection)


def test_who_is_said_to_buy_in_years_is_reminded(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    execute(engine, "UPDATE reservation SET confirmed_at = '2126-01-01'")
    window(engine, EVE)
    assert states(engine) == ["PENDING"]


def test_an_event_that_moves_out_of_its_last_day_is_told_to_who_was_reminded_already(engine: Engine) -> None:
    reminded(engine, kinds=BOTH)
    move(engine, HOUR)
    assert [window(engine, EVE, BOTH).changed for _ in range(2)] == [1, 0]


def test_a_change_is_told_to_who_may_have_the_reminder_too_and_does_not_wait_for_it(engine: Engine) -> None:
    enable(engine)
    add_evening(engine)
    box = Mailbox(UNKNOWN)
    window(engine, EVE)
    relay(engine, EVE, box)
    move(engine, -HOUR)
    assert window(engine, EVE + HOUR).changed == 1
    assert relay(engine, EVE + HOUR, box).delivered == 1


def test_holders_of_a_cancelled_event_are_told_once_if_the_setting_says_so(engine: Engine) -> None:
    evening = add_evening(engine, tickets=3)
    add_reservation(engine, evening, status="ACTIVE")
    execute(engine, "UPDATE event SET status = 'CANCELLED'")
    # The application takes back what was sold for it in the same breath.
    execute(
        engine,
        "UPDATE reservation SET status = 'CANCELLED', cancelled_at = clock_timestamp() WHERE public_ref = 'ticket-1'",
    )
    windows = [window(engine, EVE + hours * HOUR, cancellations=True, chunk_size=2).cancelled for hours in (0, 1)]
    assert windows == [3, 0]
    box = Mailbox()
    assert relay(engine, EVE, box).delivered == 3
    assert {subject for _, subject in box.subjects} == {"Cancelled: Aida, Tuesday, June 2, 2026"}


@pytest.mark.parametrize(("cancellations", "hours"), [(False, 0), (True, 25)])
def test_a_cancelled_event_is_not_told_without_the_setting_nor_when_it_would_have_begun(
    engine: Engine, cancellations: bool, hours: int
) -> None:
    add_evening(engine)
    execute(engine, "UPDATE event SET status = 'CANCELLED'")
    assert window(engine, EVE + hours * HOUR, cancellations=cancellations).cancelled == 0
    assert window(engine, EVE, cancellations=True).cancelled == 0
