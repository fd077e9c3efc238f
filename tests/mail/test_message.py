"""The bytes of mails: whole, the same each time, and nothing that anybody types can add a header or a recipient."""

from __future__ import annotations

from dataclasses import replace
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mail.reading import EVENT_ID
from tests.support.rows import instant
from ticketflow_orch.formatting.mail_addresses import MailAddress, mail_address
from ticketflow_orch.mail.message import Attachment, Letter, compose, one_line
from ticketflow_orch.outbox.delivery.smtp import read_envelope

AT = instant("2026-06-01T18:00")
LETTER = Letter(
    sender="tickets@example.com",
    sender_name="Teatro Real",
    recipient=MailAddress("buyer", "example.org"),
    subject="Reminder: Aida",
    text="Aida\n",
    html="<p>Aida</p>",
    language="en",
)


def composed(**changes: Any) -> EmailMessage:
    return message_from_bytes(compose(EVENT_ID, AT, replace(LETTER, **changes)), policy=policy.SMTP)


def test_a_mail_is_complete() -> None:
    mail = composed()
    assert dict(mail.items()) == {
        "From": "Teatro Real <tickets@example.com>",
        "To": "buyer@example.org",
        "Subject": "Reminder: Aida",
        "Date": "Mon, 01 Jun 2026 18:00:00 +0000",
        "Message-ID": f"<{EVENT_ID}@example.com>",
        "Content-Language": "en",
        "Auto-Submitted": "auto-generated",
        "X-Auto-Response-Suppress": "All",
        "MIME-Version": "1.0",
        "Content-Type": f'multipart/alternative; boundary="=_{EVENT_ID.hex}_0"',
    }
    assert [part.get_content_type() for part in mail.iter_parts()] == ["text/plain", "text/html"]


def test_the_same_event_gives_the_same_bytes_with_lines_that_every_server_takes() -> None:
    letter = replace(LETTER, text="ñ" * 5000, attachments=[Attachment("statement.html", "html", b"\xc3\xb1\n" * 999)])
    body = compose(EVENT_ID, AT, letter)
    assert body == compose(EVENT_ID, AT, letter)
    assert body.replace(b"\r\n", b"").find(b"\n") == -1
    assert max(map(len, body.split(b"\r\n"))) <= 998
    assert body.isascii()


def test_an_attachment_is_the_file_byte_by_byte() -> None:
    content = "<p>1.234,56\n\r\nñ</p>".encode()
    [attachment] = composed(attachments=[Attachment("statement.html", "html", content)]).iter_attachments()
    assert attachment.get_payload(decode=True) == content
    assert (attachment.get_filename(), attachment.get_content_type()) == ("statement.html", "text/html")
    assert attachment.get_content_charset() == "utf-8"


@pytest.mark.parametrize(
    "hostile",
    [
        "Aida\r\nBcc: victim@example.net",
        "Aida\nBcc: victim@example.net\n\nBuy now",
        "Aida\rBcc: victim@example.net",
        "Aida\u2028Bcc: victim@example.net\u0085x\x00\x0b",
        'Aida" <victim@example.net>, "',
        "=?utf-8?q?Aida=0d=0aBcc=3a_victim=40example=2enet?=",
        "Aïda, <victim@example.net>; (comment) \\ " + "ñ, <x@example.net>" * 50,
        "\u202egnp.exe",
        "",
    ],
)
def test_no_name_and_no_title_adds_a_header_or_a_recipient(hostile: str) -> None:
    mail = composed(sender_name=hostile, subject=hostile)
    assert set(mail.keys()) == set(composed().keys())
    assert_addresses(mail)


@settings(max_examples=150)
@given(name=st.text(max_size=300), subject=st.text(max_size=300), text=st.text(max_size=300))
def test_whatever_is_typed_the_mail_says_it_in_its_place_and_nowhere_else(name: str, subject: str, text: str) -> None:
    mail = composed(sender_name=name, subject=subject, text=text)
    assert set(mail.keys()) == set(composed().keys())
    assert_addresses(mail)
    assert [part.get_content_type() for part in mail.walk()] == ["multipart/alternative", "text/plain", "text/html"]


def assert_addresses(mail: EmailMessage) -> None:
    assert [address.addr_spec for address in mail["From"].addresses] == ["tickets@example.com"]
    assert [address.addr_spec for address in mail["To"].addresses] == ["buyer@example.org"]


def test_a_very_long_title_is_cut_and_a_short_one_is_left_alone() -> None:
    assert one_line("Aida,  Verdi\r\n") == "Aida, Verdi"
    assert len(one_line("Aida " * 1000)) <= 200
    assert one_line("Aida " * 1000).endswith("Aida…")
    assert composed(subject="ブルーノート東京 · Aïda")["Subject"] == "ブルーノート東京 · Aïda"


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("buyer@example.org", "buyer@example.org"),
        (" o'hara+tag@sub.example.org ", "o'hara+tag@sub.example.org"),
        ("buyer@localhost", "buyer@localhost"),
        ("buyer@münchen.example", "buyer@xn--mnchen-3ya.example"),
        # IDNA 2008: each of these is a domain of its own, and another one in IDNA 2003.
        ("kasse@spaß.example", "kasse@xn--spa-7ka.example"),
        ("a@βόλος.example", "a@xn--nxasmm1c.example"),
        ("a@نامه\u200cای.example", "a@xn--mgba3gch31f060k.example"),
        ("a@\u0915\u094d\u200d\u0937.example", "a@xn--11b2ezcw70k.example"),
        ("Buyer@EXAMPLE.org", "Buyer@example.org"),
        ("ñ@example.org", "ñ@example.org"),
        ("用户@例子.example", "用户@xn--fsqu00a.example"),
        (None, None),
        ("", None),
        ("buyer", None),
        ("a@example.org, b@example.org", None),
        ("a@example.org\r\nRCPT TO:<b@example.org>", None),
        ("Buyer <a@example.org>", None),
        ('"a b"@example.org', None),
        ("a..b@example.org", None),
        ("a@exa mple.org", None),
        ("a@a\u200db.example", None),
        ("\u202ea@example.org", None),
        ("a@[192.0.2.1]", None),
        ("a@192.0.2.1", None),
        ("a@example.org.", None),
        ("a@☃.example", None),
        ("a\0b@example.org", None),
        ("a\ud800@example.org", None),
        ("a@" + ".".join(["x" * 60] * 5), None),
        ("a@" + "x" * 64 + ".org", None),
        ("x" * 65 + "@example.org", None),
        ("a@@example.org", None),
    ],
)
def test_an_address_is_one_address_or_none(typed: str | None, address: str | None) -> None:
    found = mail_address(typed)
    assert (None if found is None else str(found)) == address


def test_an_address_beyond_ascii_goes_out_as_it_is_written_and_asks_for_servers_that_take_it() -> None:
    recipient = mail_address("жан@spaß.example")
    assert recipient is not None
    body = compose(EVENT_ID, AT, replace(LETTER, recipient=recipient))
    envelope = read_envelope(body)
    assert envelope.recipient == "жан@xn--spa-7ka.example"
    assert envelope.needs == ("8BITMIME", "SMTPUTF8")
    assert read_envelope(compose(EVENT_ID, AT, LETTER)).needs == ()


@pytest.mark.parametrize(
    "title",
    [
        "Gala 👩\u200d👩\u200d👧",
        "نمایش می\u200cخواهم",
        "क्\u200dष",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "❤\ufe0f",
    ],
)
def test_what_joins_letters_and_emoji_survives(title: str) -> None:
    assert one_line(title) == title
    assert composed(subject=title)["Subject"] == title


def test_a_title_is_not_cut_behind_a_joiner_and_tags_alone_are_nothing() -> None:
    assert one_line("a" * 198 + "👩\u200d👩").endswith("👩…")
    assert one_line("a\U000e0067b\u202ec") == "a b c"


def test_answers_go_to_the_organization_and_nobody_s_holiday_answers() -> None:
    mail = composed(reply_to=mail_address("kasse@spaß.example"))
    assert mail["Reply-To"] == "kasse@xn--spa-7ka.example"
    assert (mail["Auto-Submitted"], mail["X-Auto-Response-Suppress"]) == ("auto-generated", "All")
    assert "Reply-To" not in composed(reply_to=mail_address("ñ@example.org"))


@pytest.mark.parametrize("where", ["https://tickets.example/unsubscribe?m=" + "x" * 200, "mailto:off@tickets.example"])
def test_a_reader_unsubscribes_by_a_url_that_is_never_folded(where: str) -> None:
    body = compose(EVENT_ID, AT, replace(LETTER, unsubscribe=where))
    assert f"List-Unsubscribe: <{where}>\r\n".encode() in body
    one_click = b"\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in body
    assert one_click == where.startswith("https:")
    assert read_envelope(body).recipient == "buyer@example.org"
