"""The configuration of delivery: read as a whole, and refused in one sentence that names the key and the fix."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tests.outbox.delivery.messages import SECRETS, message, no_commit
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.outbox.delivery import Verdict
from ticketflow_orch.outbox.delivery.configuration import Allowance, Delivery, Route, read_delivery
from ticketflow_orch.outbox.delivery.file import FileTransport
from ticketflow_orch.outbox.delivery.smtp import SmtpTransport
from ticketflow_orch.outbox.delivery.webhook import WebhookTransport
from ticketflow_orch.outbox.events import MAILS
from ticketflow_orch.settings import Settings

ENVIRONMENT = SECRETS | {"SMTP_PASSWORD": "s3cret", "PAYMENTS_TOKEN": "Bearer 42"}
WHOLE = """
[destinations.partners]
transport = "webhook"
url = "https://hooks.example/in"
secrets = ["TICKETFLOW_WEBHOOK_SECRET", "TICKETFLOW_WEBHOOK_SECRET_OLD"]

[destinations.payments]
transport = "webhook"
url = "https://payments.example/payouts"
look_up_url = "https://payments.example/payouts/{id}"
secrets = ["TICKETFLOW_WEBHOOK_SECRET"]
headers = { Authorization = "PAYMENTS_TOKEN" }
deadline = "PT30S"

[destinations.mail]
transport = "smtp"
host = "mail.example"
username = "orch"
password = "SMTP_PASSWORD"
answer_timeout = 300

[destinations.log]
transport = "file"
path = "sent/log.jsonl"

[routes.default]
destination = "partners"

[routes.PayoutRequested]
destination = "payments"
attempts = 20
in_doubt = "look_up"
remembers = "PT24H"

[routes.ReminderDue]
destination = "mail"
in_doubt = "resend"
when_dead = "skip"

[routes.MonthSettled]
destination = "log"
"""

Read = Callable[..., Delivery]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads `text` as the file of TICKETFLOW_DELIVERY."""

    def read(text: str, environment: Mapping[str, str] = ENVIRONMENT) -> Delivery:
        file = tmp_path / "delivery.toml"
        file.write_text(text, "utf-8")
        return read_delivery(Settings(home=tmp_path / "home", delivery=file), environment)

    return read


def types_to(delivery: Delivery, destination: str) -> set[str]:
    """The event types that are sent to `destination` by a route of their own."""
    return {kind for kind, route in delivery.routes.items() if route.destination == destination}


def test_the_documented_example_is_one_that_works(read: Read) -> None:
    page = (Path(__file__).parents[3] / "docs" / "delivery.md").read_text("utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    secret = SECRETS["TICKETFLOW_WEBHOOK_SECRET"]
    names = ("PARTNERS_SECRET", "PARTNERS_SECRET_OLD", "PAYMENTS_SECRET", "PAYMENTS_TOKEN", "MAIL_PASSWORD")
    delivery = read(example, dict.fromkeys(names, secret))
    assert (delivery.default.attempts, delivery.default.when_dead, delivery.default.in_doubt) == (None, "block", "hold")
    assert delivery.allowance("mail") == Allowance(rate=14, concurrency=5)
    assert types_to(delivery, "payments") == {"PayoutRequested"}
    assert types_to(delivery, "mail") == MAILS


def test_each_event_type_has_its_route(read: Read) -> None:
    delivery = read(WHOLE)
    assert delivery.route("PayoutRequested") == Route(
        destination="payments",
        attempts=20,
        when_dead="block",
        in_doubt="look_up",
        remembers=timedelta(hours=24),
        # A look-up and what is sent after it.
        limit=timedelta(seconds=60),
        takes_mails=False,
        gives_up_after=timedelta(days=21),
    )
    assert delivery.route("ReminderDue") == Route(
        destination="mail",
        attempts=None,
        when_dead="skip",
        in_doubt="resend",
        remembers=timedelta(0),
        limit=timedelta(seconds=370),
        takes_mails=True,
    )
    assert delivery.route("EventClosed") == delivery.default
    assert delivery.default == Route(
        destination="partners",
        attempts=None,
        when_dead="block",
        in_doubt="hold",
        remembers=None,
        limit=timedelta(seconds=20),
        takes_mails=False,
    )


def test_alerts_are_not_given_up_and_take_another_way_unless_one_is_said(read: Read, tmp_path: Path) -> None:
    delivery = read(WHOLE)
    alert = delivery.route("OutboxEventDead")
    assert (alert.destination, alert.attempts, alert.gives_up_after) == ("partners", None, timedelta(days=30))
    assert alert.otherwise is not None
    assert alert.otherwise.destination == "alerts-file"
    assert delivery.route_to("OutboxEventDead", "alerts-file") == alert.otherwise
    assert delivery.route_to("OutboxEventDead", "partners") == alert
    assert delivery.default.otherwise is None
    said = read(WHOLE + '\n[routes.alerts]\ndestination = "payments"\notherwise = "log"\n').route("WorkOverdue")
    assert said.otherwise is not None
    assert (said.destination, said.otherwise.destination) == ("payments", "log")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            '[routes.alerts]\ndestination = "partners"\notherwise = "mail"',
            "routes.alerts.otherwise = 'mail' is no other",
        ),
        ('[routes.alerts]\ndestination = "log"\notherwise = "log"', "routes.alerts.otherwise = 'log' is no other"),
        ('[routes.EventClosed]\ndestination = "log"\notherwise = "partners"', "routes.EventClosed.otherwise is for"),
        ('[routes.EventClosed]\ndestination = "log"\ngives_up_after = "PT0S"', "routes.EventClosed.gives_up_after"),
    ],
)
def test_another_way_is_one_that_can_be_gone(read: Read, line: str, fault: str) -> None:
    with pytest.raises(TicketflowError, match=fault):
        read(f"{WHOLE}\n{line}\n")


def test_a_destination_knows_the_types_that_are_named_for_it(read: Read) -> None:
    delivery = read(WHOLE)
    assert delivery.destinations == {"partners", "payments", "mail", "log", "alerts-file"}
    assert types_to(delivery, "mail") == {"EventCancelled", "ReminderChanged", "ReminderDue"}
    assert types_to(delivery, "partners") == set()


def test_transports_are_made_once_and_of_the_right_kind(read: Read) -> None:
    delivery = read(WHOLE)
    kinds = {name: type(delivery.transport(name)) for name in delivery.destinations}
    assert kinds == {
        "partners": WebhookTransport,
        "payments": WebhookTransport,
        "mail": SmtpTransport,
        "log": FileTransport,
        "alerts-file": FileTransport,
    }
    assert delivery.transport("mail") is delivery.transport("mail")
    delivery.close()
    known = "alerts-file, log, mail, partners, payments"
    with pytest.raises(
        TicketflowError, match=f"There is no destination 'post'; the configuration of delivery has {known}"
    ):
        delivery.transport("post")


def test_without_a_file_all_events_are_written_to_the_home(tmp_path: Path) -> None:
    delivery = read_delivery(Settings(home=tmp_path / "home"), {})
    outcome = delivery.transport(delivery.route("Anything").destination).send(message(), no_commit)
    delivery.close()
    assert outcome.verdict is Verdict.DELIVERED
    assert (tmp_path / "home" / "outbox.jsonl").read_bytes().count(b"\n") == 1


def test_the_home_s_own_file_is_read_where_no_other_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "delivery.toml").write_text(WHOLE, "utf-8")
    assert read_delivery(Settings(home=home), ENVIRONMENT).route("PayoutRequested").destination == "payments"
    other = tmp_path / "other.toml"
    other.write_text('[destinations.f]\ntransport = "file"\n[routes.default]\ndestination = "f"\n', "utf-8")
    assert read_delivery(Settings(home=home, delivery=other), ENVIRONMENT).destinations == {"f"}


def test_the_demo_s_provider_takes_payouts_only(read: Read) -> None:
    text = WHOLE.replace('transport = "file"', 'transport = "demo"')
    with pytest.raises(TicketflowError, match="'log' takes nothing but payouts, which are PayoutRequested"):
        read(text)


def test_a_path_is_relative_to_the_home(read: Read, tmp_path: Path) -> None:
    delivery = read(WHOLE)
    delivery.transport("log").send(message(), no_commit)
    delivery.close()
    assert (tmp_path / "home" / "sent" / "log.jsonl").exists()


def test_what_a_receiver_remembers_can_be_said_otherwise(read: Read) -> None:
    assert read(WHOLE.replace('"resend"', '"resend"\nremembers = "forever"')).route("ReminderDue").remembers is None
    assert read(WHOLE.replace('"PT24H"', "0")).route("PayoutRequested").remembers == timedelta(0)


def test_no_secret_is_shown(read: Read) -> None:
    delivery = read(WHOLE)
    shown = repr(delivery) + repr([delivery.transport(name) for name in delivery.destinations])
    assert [value for value in ENVIRONMENT.values() if value in shown or value.removeprefix("whsec_") in shown] == []


def test_payouts_that_no_route_names_are_not_sent_twice_either(read: Read) -> None:
    text = WHOLE.replace("[routes.PayoutRequested]", "[routes.EventClosed]")
    read(text)
    unsafe = text.replace('destination = "partners"', 'destination = "partners"\nremembers = 60\nin_doubt = "resend"')
    with pytest.raises(TicketflowError, match=r"routes\.PayoutRequested\.in_doubt = 'resend' could do twice"):
        read(unsafe)


HOOK = "destinations.partners"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('transport = "file"', 'transport = "fax"', "destinations.log is refused: "),
        ('transport = "file"\n', "", "destinations.log is refused: "),
        ('host = "mail.example"\n', "", "destinations.mail.host is missing; give it a value."),
        ("[destinations.log]", "[[destinations]]", "is not TOML: "),
        (
            "[routes.default]",
            "[routes.Default]",
            "[routes.default] is missing; say where events go that no other route",
        ),
        ("[routes.default]", "[rout.default]", "rout is no option; correct its name or leave it out."),
        ('path = "sent', 'file = "sent', "destinations.log.file is no option; correct its name or leave it out."),
        ('destination = "log"', 'destination = "lag"', "routes.MonthSettled.destination = 'lag' is no destination; "),
        (
            "[routes.MonthSettled]",
            "[routes.MonthSetled]",
            "routes.MonthSetled: MonthSetled is no type of event; correct its name, perhaps to MonthSettled.",
        ),
        ("[routes.MonthSettled]", "[routes.X]", "routes.X: X is no type of event; name one that docs/"),
        (
            '[routes.default]\ndestination = "partners"',
            '[routes.default]\ndestination = "mail"',
            "routes.default.destination = 'mail' takes nothing but mails, which are EventCancelled, Remi",
        ),
        ('destination = "log"', 'destination = "mail"', "routes.MonthSettled.destination = 'mail' takes nothing but"),
        ("attempts = 20", "attempts = 0", "routes.PayoutRequested.attempts = 0 is refused: "),
        ('"skip"', '"drop"', "routes.ReminderDue.when_dead = 'drop' is refused: "),
        ('"PT24H"', '"a day"', "routes.PayoutRequested.remembers = 'a day' is refused: write a length"),
        ('"PT30S"', '"PT2H"', "destinations.payments.deadline = 'PT2H' is refused: "),
        ('"PT30S"', "0", "destinations.payments.deadline = 0 is refused: "),
        (
            'in_doubt = "resend"',
            'in_doubt = "look_up"',
            "routes.ReminderDue.in_doubt = 'look_up' cannot be done; ",
        ),
        ("look_up_url", "# look_up_url", "routes.PayoutRequested.in_doubt = 'look_up' cannot be done; payments would"),
        (
            'look_up"\nremembers = "PT24H"',
            'look_up"\nremembers = "forever"',
            "routes.PayoutRequested.in_doubt = 'look_up' has no effect on a receiver that never forgets; ",
        ),
        (
            'in_doubt = "look_up"',
            'in_doubt = "resend"',
            "routes.PayoutRequested.in_doubt = 'resend' could do twice what nobody can undo; write 'look",
        ),
        ("https://hooks", "http://hooks", f"{HOOK} is refused: use https, or say allow_private = true"),
        ("https://hooks", "ftp://hooks", f"{HOOK}.url is refused: write https://host/path."),
        ("https://hooks.example/in", "https:///in", f"{HOOK}.url is refused: write https://host/path."),
        ("https://hooks.example", "https://hooks.example:x", f"{HOOK}.url is refused: this is no URL"),
        ("https://hooks", "https://me:s3same@hooks", f"{HOOK}.url is refused: a URL is shown in logs; "),
        ("https://hooks.example/in", "https://hooks.example/in#a", f"{HOOK}.url is refused: leave out what follows #"),
        ("https://hooks.example/in", "https://hooks.example/i n", f"{HOOK}.url is refused: write the URL in printable"),
        (
            "https://hooks.example/in",
            "https://hooks\\\\@evil.example/",
            f"{HOOK}.url is refused: write the URL in printa",
        ),
        (
            "{id}",
            "{payout}",
            "destinations.payments.look_up_url is refused: write our reference into the path or query",
        ),
        ("{id}", "7", "destinations.payments.look_up_url is refused: write our reference into the path or query"),
        (
            "https://payments.example/payouts/{id}",
            "https://{id}.example/",
            "destinations.payments.look_up_url is refused: ",
        ),
        (
            "https://payments.example/payouts/{id}",
            "https://{id}.example",
            "destinations.payments.look_up_url is refused: ",
        ),
        ('["TICKETFLOW_WEBHOOK_SECRET", "TICKETFLOW_WEBHOOK_SECRET_OLD"]', "[]", f"{HOOK}.secrets is refused: "),
        (
            '"TICKETFLOW_WEBHOOK_SECRET_OLD"',
            f'"{SECRETS["TICKETFLOW_WEBHOOK_SECRET"]}"',
            f"{HOOK}.secrets.1 is refused: name the environment variable that holds the value, never the value.",
        ),
        ('"SMTP_PASSWORD"', '"s3same"', "destinations.mail.password is refused: name the environment variable that"),
        (
            '"SMTP_PASSWORD"',
            '"NOT_SET"',
            "NOT_SET is not set; the configuration of delivery names it, so give it a value.",
        ),
        ("Authorization =", '"Webhook-Id" =', "destinations.payments.headers is refused: 'Webhook-Id' is no name of a"),
        ("Authorization =", '"a b" =', "destinations.payments.headers is refused: 'a b' is no name of a header"),
        ('username = "orch"\n', "", "destinations.mail is refused: give both username and password, "),
        (
            '"mail.example"',
            '"mail.example"\nsecurity = "none"',
            "destinations.mail is refused: a password needs security",
        ),
        ('"mail.example"', '"mail.example"\nca_file = "/no/such"', "destinations.mail.ca_file"),
        (
            '"mail.example"',
            '"mail.example:587"',
            "destinations.mail.host = 'mail.example:587' is refused: write a",
        ),
        ('"mail.example"', '"mail example"', "destinations.mail.host = 'mail example' is refused: "),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(read: Read, tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in WHOLE
    with pytest.raises(TicketflowError) as refused:
        read(WHOLE.replace(old, new, 1))
    said = str(refused.value)
    assert said.startswith(str(tmp_path / "delivery.toml"))
    assert fault in said
    assert said.endswith(".")
    assert "\n" not in said
    assert "s3same" not in said
    assert "whsec_" not in said


@pytest.mark.parametrize(
    "value",
    ["", "tiny", "whsec_", "whsec_!", "whsec_" + base64.b64encode(b"x" * 23).decode(), "whsec_" + "A" * 88 + "=="],
)
def test_a_secret_that_cannot_sign_is_refused_by_its_variable(read: Read, value: str) -> None:
    with pytest.raises(TicketflowError) as refused:
        read(WHOLE, ENVIRONMENT | {"TICKETFLOW_WEBHOOK_SECRET_OLD": value})
    said = str(refused.value)
    assert "TICKETFLOW_WEBHOOK_SECRET_OLD" in said
    assert not value or value not in said.replace("give it whsec_ and", "")


@pytest.mark.parametrize("value", ["Bearer 42\r\nX: y", " 42", "4é2", "\x00"])
def test_a_header_is_one_line(read: Read, value: str) -> None:
    with pytest.raises(
        TicketflowError, match="PAYMENTS_TOKEN cannot be the header Authorization: give it one line of"
    ) as no:
        read(WHOLE, ENVIRONMENT | {"PAYMENTS_TOKEN": value})
    assert value not in str(no.value)


@pytest.mark.parametrize("value", ["contraseña", "two\nlines"])
def test_a_password_is_one_that_mail_servers_understand(read: Read, value: str) -> None:
    with pytest.raises(TicketflowError, match=r"SMTP_PASSWORD cannot be a password: give it one line of") as refused:
        read(WHOLE, ENVIRONMENT | {"SMTP_PASSWORD": value})
    assert value not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TicketflowError, match=r"TICKETFLOW_DELIVERY=.*nowhere.toml cannot be read \(No such file"):
        read_delivery(Settings(delivery=tmp_path / "nowhere.toml"), {})
