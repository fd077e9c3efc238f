"""Reminders at the moment they are to go: what is true then, said in the reader's words, or nothing at all."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from tests.mail.reading import event, read, reason, text_of
from tests.support.rows import instant
from tests.support.sql_statements import execute, queries
from tests.support.tickets import NOW, START, add_ticket, due, prepare, prepared
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.outbox.delivery.handlers import Rendered
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders


def test_the_mail_tells_what_where_and_when_in_the_event_s_own_zone(engine: Engine) -> None:
    add_ticket(engine)
    mail = read(prepared(engine))
    assert mail["To"] == "buyer@example.com"
    assert mail["From"] == "Teatro Real <tickets@example.com>"
    assert mail["Subject"] == "Reminder: Aida, Tuesday, June 2, 2026"
    assert text_of(mail).startswith(
        "Aida\n\nTuesday, June 2, 2026\n8:00\u202fPM (Europe/Madrid, UTC+02:00)\n\n2 tickets"
    )
    assert "ticket" in text_of(mail, "html")


@pytest.mark.parametrize(
    ("locale", "timezone", "when", "tickets"),
    [
        ("es", "Europe/Madrid", "martes, 2 de junio de 2026\n20:00 (Europe/Madrid, UTC+02:00)", "2 entradas"),
        ("es-MX", "America/Mexico_City", "martes, 2 de junio de 2026\n12:00", "2 entradas"),
        ("en-GB", "Europe/London", "Tuesday, 2 June 2026\n19:00 (Europe/London, UTC+01:00)", "2 tickets"),
        ("ja-JP", "Asia/Tokyo", "Wednesday, June 3, 2026\n3:00 (Asia/Tokyo, UTC+09:00)", "2 tickets"),
        ("ar-KW", "Asia/Kathmandu", "Tuesday, 2 June 2026\n11:45\u202fpm (Asia/Kathmandu, UTC+05:45)", "2 tickets"),
        ("tlh", "UTC", "Tuesday, 2 June 2026\n18:00 (UTC, UTC+00:00)", "2 tickets"),
        (None, "UTC", "Tuesday, 2 June 2026\n18:00 (UTC, UTC+00:00)", "2 tickets"),
        ("", "UTC", "Tuesday, 2 June 2026\n18:00 (UTC, UTC+00:00)", "2 tickets"),
    ],
)
def test_it_is_written_as_its_readers_write(
    engine: Engine, locale: str | None, timezone: str, when: str, tickets: str
) -> None:
    add_ticket(engine, {"locale": locale}, timezone=timezone)
    day = "2026-06-03" if timezone == "Asia/Tokyo" else "2026-06-02"
    message = due(day)
    mail = text_of(read(prepare(engine, message, locale="en_GB")[message.event_id]))
    assert when in mail
    assert tickets in mail


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE reservation SET status = 'CANCELLED', cancelled_at = now()", "The reservation is CANCELLED."),
        ("UPDATE event SET status = 'CANCELLED'", "The event is CANCELLED."),
        ("UPDATE event SET status = 'CLOSED', closed_at = now()", "The event is CLOSED."),
        (
            "UPDATE event SET starts_at = '2026-06-05 18:00Z', ends_at = '2026-06-05 20:00Z'",
            "The event is not on 2026-06-02 any more, but begins at 2026-06-05T18:00:00+00:00.",
        ),
        # 21:59 UTC is still the 2nd in Madrid, 22:00 is the 3rd.
        (
            "UPDATE event SET starts_at = '2026-06-02 22:00Z', ends_at = '2026-06-02 23:00Z'",
            "The event is not on 2026-06-02 any more, but begins at 2026-06-02T22:00:00+00:00.",
        ),
        ("UPDATE reservation SET buyer_email = 'x, y@example.org'", "The buyer's address is not an address that mail"),
    ],
)
def test_a_reminder_that_nothing_is_left_of_is_suppressed_and_says_why(engine: Engine, change: str, why: str) -> None:
    add_ticket(engine)
    execute(engine, change)
    assert reason(prepared(engine)).startswith(why)


def test_an_event_that_has_begun_reminds_nobody_to_the_microsecond(engine: Engine) -> None:
    add_ticket(engine)
    read(prepared(engine, now=START - timedelta(microseconds=1)))
    assert reason(prepared(engine, now=START)) == "The event began at 2026-06-02T18:00:00+00:00."
    assert reason(prepared(engine, ref="nobody's")) == "There is no such reservation any more."


def test_an_event_that_moved_within_its_day_is_told_with_its_new_time(engine: Engine) -> None:
    add_ticket(engine)
    execute(engine, "UPDATE event SET starts_at = '2026-06-02 21:59Z', ends_at = '2026-06-02 23:00Z'")
    assert "11:59\u202fPM (Europe/Madrid" in text_of(read(prepared(engine)))


def test_what_has_been_sent_before_is_sent_again_as_it_was_unless_there_is_nothing_left(engine: Engine) -> None:
    add_ticket(engine)
    assert prepared(engine, rendered=b"as it was") == Rendered(b"as it was")
    execute(engine, "UPDATE event SET status = 'CANCELLED'")
    assert reason(prepared(engine, rendered=b"as it was")) == "The event is CANCELLED."


def test_markup_in_a_title_stays_text_and_a_line_end_ends_no_line(engine: Engine) -> None:
    add_ticket(engine, title="<script>alert(1)</script>\r\nBcc: x@example.org\r\n\r\nBuy now {{ 7 * 7 }}")
    mail = read(prepared(engine))
    assert "<script>" not in text_of(mail, "html")
    assert "&lt;script&gt;" in text_of(mail, "html")
    assert "Bcc" not in mail
    assert text_of(mail).splitlines()[0].endswith("Bcc: x@example.org Buy now {{ 7 * 7 }}")


def test_a_batch_costs_three_queries(engine: Engine) -> None:
    add_ticket(engine)
    messages = [due(event_id=uuid4(), ref=ref) for ref in ["ticket"] * 50 + ["nobody's"] * 50]
    with queries(engine) as counted:
        assert len(prepare(engine, *messages)) == 100
    assert len(counted) == 3


@pytest.mark.every_server
def test_the_event_that_a_reminder_queues_is_one_that_the_preparer_reads(engine: Engine) -> None:
    add_ticket(engine)
    rules = ReminderRules(now=instant("2026-01-01T00:00"), kinds={"24h": timedelta(hours=24)})
    send_reminders(engine, rules)
    assert send_reminders(engine, ReminderRules(now=NOW, kinds=rules.kinds)).queued == 1
    with engine.connect() as connection:
        [row] = connection.execute(text("SELECT event_id, event_type, payload FROM outbox_event"))
    assert KINDS[row.event_type].preparer is not None
    message = event(row.event_type, row.payload, row.event_id)
    assert read(prepare(engine, message)[row.event_id])["Message-ID"] == f"<{row.event_id}@example.com>"
