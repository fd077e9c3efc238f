"""What comes back suppresses the address that a mail of ours went to, and nobody else's."""

from __future__ import annotations

import json
import mailbox
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text

from tests.mail.evenings import EVE, HOUR, add_evening, enable, reminded
from tests.mail.relayed import Mailbox, relay, window
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.mail.bounces import Read, read_mailbox, read_notifications, take_in
from ticketflow_orch.mail.suppression import Reason, clear, list_suppressed, objection, suppress

HARD = ("5.1.1", "failed")
ORIGINAL = "--b\nContent-Type: message/rfc822\n\nMessage-ID: <{id}@example.com>\nTo: x@example.com\n\nhello\n--b--\n"
HEADERS = "--b\nContent-Type: text/rfc822-headers\n\nMessage-ID: <{id}@example.com>\nTo: x@example.com\n\n--b--\n"
REPORT = (
    "From: mailer-daemon@mx.example\nMIME-Version: 1.0\n"
    'Content-Type: multipart/report; boundary="b"; report-type={}\n\n'
)


def bounce(
    event_id: UUID, status: str = "5.1.1", action: str = "failed", original: str = ORIGINAL, kind: str = ""
) -> str:
    return (
        REPORT.format("delivery-status")
        + f"--b\nContent-Type: message/{kind}delivery-status\n\nReporting-MTA: dns; mx.example\n\n"
        + f"Final-Recipient: rfc822; someone.else@example.net\nAction: {action}\nStatus: {status}\n"
        + "Diagnostic-Code: smtp; 550 no such user\n\n"
        + original.format(id=event_id)
    )


def complaint(event_id: UUID, kind: str = "abuse") -> str:
    return (
        REPORT.format("feedback-report")
        + f"--b\nContent-Type: message/feedback-report\n\nFeedback-Type: {kind}\nVersion: 1\n\n"
        + ORIGINAL.format(id=event_id)
    )


def wish(event_id: UUID, **headers: str) -> str:
    more = "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in headers.items())
    return f"From: me@example.net\nSubject: unsubscribe {event_id}\n{more}\nplease\n"


@pytest.fixture
def sent(engine: Engine) -> UUID:
    """The id of a reminder that went to buyer1@example.com."""
    return reminded(engine).sent[0].event_id


def take(engine: Engine, path: Path, *mails: str) -> Read:
    path.write_text(mails[0]) if len(mails) == 1 else _mbox(path, mails)
    with engine.begin() as connection:
        return take_in(connection, read_mailbox(path), "somebody")


def _mbox(path: Path, mails: tuple[str, ...]) -> None:
    box = mailbox.mbox(path)
    for mail in mails:
        box.add(mail)
    box.close()


def entries(engine: Engine) -> list[tuple[str, Reason]]:
    with engine.connect() as connection:
        return [(entry.address, entry.reason) for entry in list_suppressed(connection)]


@pytest.mark.every_server
@pytest.mark.parametrize("original", [ORIGINAL, HEADERS])
@pytest.mark.parametrize("kind", ["", "global-"])
def test_a_permanent_bounce_suppresses_the_address_that_the_mail_went_to(
    engine: Engine, sent: UUID, tmp_path: Path, original: str, kind: str
) -> None:
    assert take(engine, tmp_path / "mail", bounce(sent, original=original, kind=kind)) == Read(1, 0, 0)
    assert entries(engine) == [("buyer1@example.com", Reason.BOUNCE)]
    with engine.connect() as connection:
        [entry] = list_suppressed(connection)
    assert (entry.detail, entry.outbox_event_id) == ("5.1.1 smtp; 550 no such user", sent)


def test_reading_a_mailbox_twice_changes_nothing_not_even_what_was_cleared(
    engine: Engine, sent: UUID, tmp_path: Path
) -> None:
    mails = (bounce(sent), bounce(sent), complaint(sent), wish(sent), "Subject: hello\n\nhow are you?\n")
    assert take(engine, tmp_path / "box", *mails) == Read(3, 1, 1)
    with engine.begin() as connection:
        assert clear(connection, "buyer1@example.com", "somebody") == 3
    with engine.begin() as connection:
        assert take_in(connection, read_mailbox(tmp_path / "box"), "somebody") == Read(0, 4, 1)
    assert entries(engine) == []


def test_a_maildir_is_read_like_an_mbox(engine: Engine, sent: UUID, tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "box")
    box.add(bounce(sent))
    with engine.begin() as connection:
        assert take_in(connection, read_mailbox(tmp_path / "box"), "somebody") == Read(1, 0, 0)


@pytest.mark.parametrize(
    "made",
    [
        lambda sent: bounce(sent, status="4.2.2", action="delayed"),
        lambda sent: bounce(sent, action="delayed"),
        # Full, too large, refused by a policy: none of that is about who it went to.
        lambda sent: bounce(sent, status="5.2.2"),
        lambda sent: bounce(sent, status="5.3.4"),
        lambda sent: bounce(sent, status="5.7.1"),
        lambda sent: bounce(uuid4()),
        lambda sent: complaint(sent, "not-spam"),
        lambda sent: complaint(uuid4()),
        lambda sent: wish(uuid4()),
        # Somebody's holiday quotes our subject.
        lambda sent: wish(sent, Auto_Submitted="auto-replied"),
        lambda sent: REPORT.format("delivery-status") + "--b\nContent-Type: message/delivery-status\n\n\n--b--\n",
        lambda sent: REPORT.format("feedback-report") + "--b\nContent-Type: message/feedback-report\n\n--b--\n",
        lambda sent: REPORT.format("delivery-status") + "--b\nContent-Type: message/rfc822\n\n--b--\n",
        lambda sent: "",
        lambda sent: "\x00\xff\n\n\n",
        lambda sent: "From nobody\n\n",
    ],
)
def test_what_is_not_permanent_not_about_the_address_or_not_of_ours_suppresses_nobody(
    engine: Engine, sent: UUID, tmp_path: Path, made: Any
) -> None:
    assert take(engine, tmp_path / "mail", made(sent)).suppressed == 0
    assert entries(engine) == []


@pytest.mark.parametrize(
    "made",
    [
        lambda sent: "Content-Type: text/plain; name*\n\nhello\n",
        lambda sent: bounce(sent, original=ORIGINAL.replace("{id}@example.com", "")),
        lambda sent: "Content-Type: multipart/mixed; boundary=b\n\n" * 2_000,
    ],
)
def test_a_mail_that_nobody_can_read_keeps_no_other_from_being_read(
    engine: Engine, sent: UUID, tmp_path: Path, made: Any
) -> None:
    assert take(engine, tmp_path / "box", made(sent), bounce(sent)).suppressed == 1


def test_a_report_about_a_mail_that_never_went_is_none(engine: Engine, tmp_path: Path) -> None:
    enable(engine)
    add_evening(engine)
    window(engine, EVE)
    with engine.connect() as connection:
        event_id = connection.execute(text("SELECT event_id FROM outbox_event")).scalar_one()
    assert take(engine, tmp_path / "mail", bounce(event_id)) == Read(0, 0, 1)


def test_a_wish_keeps_back_reminders_a_complaint_notices_too_and_a_bounce_everything() -> None:
    kept = {
        reason: [
            kind
            for kind in ("ReminderDue", "ReminderChanged", "EventCancelled", "StatementReady")
            if objection(kind, {reason})
        ]
        for reason in Reason
    }
    everything = ["ReminderDue", "ReminderChanged", "EventCancelled", "StatementReady"]
    assert kept == {
        Reason.UNSUBSCRIBE: everything[:1],
        Reason.COMPLAINT: everything[:2],
        Reason.BOUNCE: everything,
        Reason.BY_HAND: everything,
    }


def test_who_unsubscribed_is_told_all_the_same_that_the_hour_changed(
    engine: Engine, sent: UUID, tmp_path: Path
) -> None:
    take(engine, tmp_path / "mail", wish(sent))
    with engine.begin() as connection:
        connection.execute(text("UPDATE event SET starts_at = starts_at - interval '1 hour'"))
    assert window(engine, EVE + HOUR).changed == 1
    assert relay(engine, EVE + HOUR, Mailbox()).delivered == 1


SES = {
    "eventType": "Bounce",
    "bounce": {
        "bounceType": "Permanent",
        "bouncedRecipients": [{"emailAddress": "A@example.com", "diagnosticCode": "x"}],
    },
}


@pytest.mark.parametrize(
    ("told", "entry"),
    [
        (SES, ("a@example.com", Reason.BOUNCE)),
        ({"Type": "Notification", "Message": json.dumps(SES)}, ("a@example.com", Reason.BOUNCE)),
        (SES | {"bounce": {**SES["bounce"], "bounceType": "Transient"}}, None),  # type: ignore[dict-item]
        (
            {
                "notificationType": "Complaint",
                "complaint": {"complainedRecipients": [{"emailAddress": "a@example.com"}]},
            },
            ("a@example.com", Reason.COMPLAINT),
        ),
        ({"RecordType": "Bounce", "Type": "HardBounce", "Email": "a@example.com"}, ("a@example.com", Reason.BOUNCE)),
        ({"RecordType": "Bounce", "Type": "Transient", "Email": "a@example.com"}, None),
        ({"RecordType": "SpamComplaint", "Email": "a@example.com"}, ("a@example.com", Reason.COMPLAINT)),
        ({"reason": "unsubscribe", "address": "a@example.com"}, ("a@example.com", Reason.UNSUBSCRIBE)),
        ({"reason": "bounce", "address": "a at example.com"}, None),
        ({"reason": "bounce", "address": 5}, None),
        ({"reason": "bounce", "address": "\ud800@example.com"}, None),
        ({"reason": "bounce", "address": "a@example.com", "detail": "\ud800\0"}, ("a@example.com", Reason.BOUNCE)),
        ({"Message": '{"a": ' * 100_000}, None),
        ({"reason": "bounce"}, None),
        ({"eventType": "Bounce", "bounce": "?"}, None),
        ({"eventType": "Open"}, None),
        ({}, None),
    ],
)
def test_what_a_provider_tells_suppresses_whom_it_names(engine: Engine, told: Any, entry: Any) -> None:
    with engine.begin() as connection:
        take_in(connection, read_notifications([json.dumps(told), ""]), "somebody")
    assert entries(engine) == ([] if entry is None else [entry])


def test_a_line_that_is_no_object_is_refused_by_its_number() -> None:
    with pytest.raises(TicketflowError, match="Line 2 is no JSON object"):
        list(read_notifications(['{"reason": "x"}', "[1]"]))
    with pytest.raises(TicketflowError, match="Line 1 is no JSON object"):
        list(read_notifications(["[" * 100_000]))


def test_an_address_is_suppressed_once_for_each_reason_and_whatever_its_capitals(engine: Engine) -> None:
    with engine.begin() as connection:
        assert suppress(connection, "Kasse@Spaß.example", Reason.BY_HAND, "asked", by="somebody")
        assert not suppress(connection, "kasse@xn--spa-7ka.example", Reason.BY_HAND, "asked", by="somebody")
        assert suppress(connection, "kasse@spaß.example", Reason.BOUNCE, "550", by="somebody")
        with pytest.raises(TicketflowError, match="is not an e-mail address"):
            suppress(connection, "kasse", Reason.BY_HAND, "asked", by="somebody")
        assert clear(connection, "kasse@spaß.example", "somebody") == 2
        with pytest.raises(TicketflowError, match="is not suppressed"):
            clear(connection, "kasse@spaß.example", "somebody")
