"""What can be said about a destination: where it is, how long to wait for it, which variables hold its secrets."""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.secret_variables import secret
from ticketflow_orch.settings import Length

# Chosen so that a receiver cannot forge a signature, and as Standard Webhooks has them.
SECRET_BYTES = range(24, 65)
_PLACEHOLDERS = {"id", "aggregate_id"}
_OURS = ("content-", "webhook-", "idempotency-key", "host", "user-agent", "transfer-encoding", "connection")


def _url(value: str) -> str:
    # What parsers read in different ways would be checked as one address and asked as another.
    if not re.fullmatch(r"[!-~]+", value) or "\\" in value:
        raise ValueError("write the URL in printable ASCII, other characters as %XX or xn--")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("this is no URL; write https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("write https://host/path")
    if "@" in parts.netloc:
        raise ValueError("a URL is shown in logs; name the variable of an Authorization header in `headers` instead")
    if parts.fragment:
        raise ValueError("leave out what follows #, which is never sent")
    return value


def _reference_url(value: str) -> str:
    parts = urlsplit(_url(value.replace("{", "%7B").replace("}", "%7D")))
    found = re.findall(r"%7B(.*?)%7D", f"{parts.path}?{parts.query}")
    if not found or not _PLACEHOLDERS.issuperset(found) or len(re.findall(r"[{}]", value)) != 2 * len(found):
        raise ValueError("write our reference into the path or query as {id} (the event's) or {aggregate_id}")
    return value


def _header_names(value: Mapping[str, str]) -> Mapping[str, str]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower().startswith(_OURS):
            raise ValueError(f"{name!r} is no name of a header that can be added")
    return value


def _host(value: str) -> str:
    try:
        ip_address(value)
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", value):
            raise ValueError("write a name or an address; a port has a key of its own") from None
    return value


def _certificates(path: Path) -> Path:
    try:
        ssl.create_default_context(cafile=path)
    except OSError:
        raise ValueError("name a file of PEM certificates that can be read") from None
    return path


# The value is not said when it is refused: it may be the secret itself, written where its variable's name belongs.
Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
Limit = Annotated[Length, Field(gt=timedelta(0), le=timedelta(hours=1))]
Certificates = Annotated[Path, AfterValidator(_certificates)]


class Destination(BaseModel):
    """One `[destinations.NAME]`.

    `rate`: events a second that it is sent at most, by all relays together; without one, as many as it takes.
    `concurrency`: events that each relay has in flight to it at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float | None = Field(None, ge=0.01, le=100_000)
    concurrency: int = Field(16, ge=1, le=100)

    @property
    def limit(self) -> timedelta:
        """No attempt takes longer; a lease on an event must last for more."""
        raise NotImplementedError

    @property
    def remembers(self) -> timedelta | None:
        """How long a receiver of this kind usually recognises an event id; None: for ever."""
        return None

    @property
    def takes_mails(self) -> bool:
        """Whether what is rendered as a mail is sent as one; else it goes as JSON like everything."""
        return True


class WebhookDestination(Destination):
    """An HTTP receiver of signed POSTs, as Standard Webhooks has them.

    `secrets` name the variables whose values sign (`whsec_` and base64), all of them, so that a receiver can change
    from one to the next; `headers` maps names of further headers to the variables of their values. `deadline` bounds
    a request as a whole. `look_up_url` answers a signed GET with 200 where the receiver has our reference and with
    404 where it has not and never will by itself. `allow_private`: it is inside our network, where http is enough.
    """

    transport: Literal["webhook"]
    url: Annotated[str, AfterValidator(_url)]
    secrets: tuple[Variable, ...] = Field(min_length=1)
    headers: Annotated[Mapping[str, Variable], AfterValidator(_header_names)] = Field({})
    look_up_url: Annotated[str, AfterValidator(_reference_url)] | None = None
    allow_private: bool = False
    ca_file: Certificates | None = None
    connect_timeout: Limit = timedelta(seconds=5)
    deadline: Limit = timedelta(seconds=20)

    @model_validator(mode="after")
    def _encrypted(self) -> WebhookDestination:
        urls = [url for url in (self.url, self.look_up_url) if url is not None]
        if not self.allow_private and any(url.startswith("http:") for url in urls):
            raise ValueError("use https, or say allow_private = true for a receiver inside your own network")
        return self

    @property
    def limit(self) -> timedelta:
        # What was looked up and is not there is sent in the same attempt.
        return self.deadline * (1 if self.look_up_url is None else 2)

    @property
    def takes_mails(self) -> bool:
        return False


class SmtpDestination(Destination):
    """A mail server. `security`: TLS after STARTTLS, TLS from the first byte, or none.

    `password` names the variable of the password of `username`. `command_timeout` bounds the whole dialogue before
    the message, `answer_timeout` the message and its answer, for which RFC 5321 (4.5.3.2.6) wants ten minutes: a client
    that gives up earlier doubts mail that was delivered. `hello_name` is how we call ourselves.
    """

    transport: Literal["smtp"]
    # Many a server takes no more connections of one client; and each is a mail in doubt where it stops answering.
    concurrency: int = Field(5, ge=1, le=100)
    host: Annotated[str, AfterValidator(_host)]
    port: int | None = Field(None, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = Field(None, pattern=r"^[ -~]+$")
    password: Variable | None = None
    hello_name: str | None = Field(None, pattern=r"^[A-Za-z0-9.:\[\]-]+$")
    ca_file: Certificates | None = None
    connect_timeout: Limit = timedelta(seconds=10)
    command_timeout: Limit = timedelta(seconds=60)
    answer_timeout: Limit = timedelta(seconds=600)

    @model_validator(mode="after")
    def _login(self) -> SmtpDestination:
        if (self.username is None) != (self.password is None):
            raise ValueError("give both username and password, the name of its variable, or neither")
        if self.username is not None and self.security == "none":
            raise ValueError('a password needs security = "starttls" or "tls"')
        return self

    @property
    def limit(self) -> timedelta:
        return self.connect_timeout + self.command_timeout + self.answer_timeout

    @property
    def remembers(self) -> timedelta | None:
        return timedelta(0)


class FileDestination(Destination):
    """JSON lines in `path`, which is relative to TICKETFLOW_HOME: what would be sent, to look at."""

    transport: Literal["file"]
    path: Path = Path("outbox.jsonl")

    @property
    def limit(self) -> timedelta:
        return timedelta(minutes=1)


class DemoDestination(Destination):
    """The demo's payment provider, which writes payouts to `path` and confirms those of the demo's organizations."""

    transport: Literal["demo"]
    path: Path = Path("outbox.jsonl")

    @property
    def limit(self) -> timedelta:
        return timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class WebhookSecrets:
    """What signs, and what further headers say."""

    keys: tuple[bytes, ...]
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return f"WebhookSecrets({len(self.keys)} keys, headers {sorted(self.headers)})"


def webhook_secrets(destination: WebhookDestination, environment: Mapping[str, str]) -> WebhookSecrets:
    """The values of the variables that `destination` names.

    Raises:
        InvalidInput: one is not set or malformed; names the variable, never the value.
    """
    keys = tuple(_key(name, _variable(name, environment)) for name in destination.secrets)
    headers = {header: _variable(name, environment) for header, name in destination.headers.items()}
    for header, value in headers.items():
        if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
            name = destination.headers[header]
            raise InvalidInput(f"{name} cannot be the header {header}: give it one line of printable ASCII.")
    return WebhookSecrets(keys, headers)


def smtp_password(destination: SmtpDestination, environment: Mapping[str, str]) -> str | None:
    """The value of the variable that `destination` names, if it names one.

    Raises:
        InvalidInput: it is not set or malformed; names the variable, never the value.
    """
    if destination.password is None:
        return None
    value = _variable(destination.password, environment)
    if not re.fullmatch(r"[ -~]+", value):
        raise InvalidInput(f"{destination.password} cannot be a password: give it one line of printable ASCII.")
    return value


def _variable(name: str, environment: Mapping[str, str]) -> str:
    value = secret(name, environment)
    if value is None:
        raise InvalidInput(f"{name} is not set; the configuration of delivery names it, so give it a value.")
    return value


def _key(name: str, value: str) -> bytes:
    try:
        key = base64.b64decode(value.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if not value.startswith("whsec_") or len(key) not in SECRET_BYTES:
        raise InvalidInput(f"{name} cannot sign webhooks: give it whsec_ and the base64 of 24 to 64 random bytes.")
    return key
