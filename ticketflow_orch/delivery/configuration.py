"""Which events go where, read from one TOML file and validated as a whole before anything is delivered."""

from __future__ import annotations

import hashlib
import os
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ticketflow_orch.delivery import Transport
from ticketflow_orch.delivery.demo import DemoProvider
from ticketflow_orch.delivery.destinations import (
    DemoDestination,
    FileDestination,
    SmtpDestination,
    WebhookDestination,
    WebhookSecrets,
    smtp_password,
    webhook_secrets,
)
from ticketflow_orch.delivery.file import FileTransport
from ticketflow_orch.delivery.smtp import SmtpTransport
from ticketflow_orch.errors import InputError
from ticketflow_orch.outbox import MAILS, NEVER_TWICE, require_event_type
from ticketflow_orch.settings import Length, Settings

AnyDestination = WebhookDestination | SmtpDestination | FileDestination | DemoDestination
WhenDead = Literal["block", "skip"]
InDoubt = Literal["resend", "hold", "look_up"]
# Without a file of their own all events are only written down.
UNCONFIGURED = {"destinations": {"file": {"transport": "file"}}, "routes": {"default": {"destination": "file"}}}
# In TICKETFLOW_HOME, for whatever process works there.
HOME_FILE = "delivery.toml"


@dataclass(frozen=True, slots=True)
class Route:
    """Where events of a type go, and what becomes of those that do not arrive.

    `attempts`: after so many an event is dead. `when_dead`: a dead event keeps later ones of its aggregate waiting
    (block) or not (skip). `remembers`: how long the receiver recognises an event id, None for ever; where an event
    may have arrived longer ago than that, `in_doubt` says whether it is sent once more, held for a person, or looked
    up. `limit`: no attempt takes longer, so a lease lasts for more. `takes_mails`: what is rendered as a mail is sent
    as one there, and as JSON like everything elsewhere.
    """

    destination: str
    attempts: int
    when_dead: WhenDead
    in_doubt: InDoubt
    remembers: timedelta | None
    limit: timedelta
    takes_mails: bool = True


@dataclass(frozen=True)
class Delivery:
    """The routes and, made when first asked for, their transports.

    `routes` are those of the event types that the configuration names; all others take `default`. `digest` says what
    goes where, see `read_routes`.
    """

    routes: Mapping[str, Route]
    default: Route
    _makers: Mapping[str, Callable[[], Transport]] = field(repr=False)
    digest: str = field(default="", repr=False)
    _made: dict[str, Transport] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def destinations(self) -> frozenset[str]:
        """The names of all destinations."""
        return frozenset(self._makers)

    def route(self, event_type: str) -> Route:
        """The route of `event_type`."""
        return self.routes.get(event_type, self.default)

    def types_of(self, destination: str) -> frozenset[str]:
        """The event types that `routes` sends to `destination`; `default` may send all others there too."""
        return frozenset(kind for kind, route in self.routes.items() if route.destination == destination)

    def transport(self, destination: str) -> Transport:
        """The transport to `destination`, the same one each time.

        Raises:
            InputError: there is no destination of that name.
        """
        made = self._made.get(destination)
        if made is not None:
            return made
        if destination not in self._makers:
            known = ", ".join(sorted(self._makers))
            raise InputError(f"There is no destination {destination!r}; the configuration of delivery has {known}.")
        with self._lock:
            if destination not in self._made:
                self._made[destination] = self._makers[destination]()
            return self._made[destination]

    def close(self) -> None:
        """Close the transports made so far; to be called when nothing is being sent any more."""
        with self._lock:
            while self._made:
                self._made.popitem()[1].close()


def delivery_file(settings: Settings) -> Path | None:
    """The file that says where events go: TICKETFLOW_DELIVERY, else the home's own, if there is one."""
    if settings.delivery is not None:
        return settings.delivery
    own = settings.home / HOME_FILE
    return own if own.is_file() else None


def read_delivery(settings: Settings, environment: Mapping[str, str] = os.environ) -> Delivery:
    """What `delivery_file` says; without one, all events go to `<home>/outbox.jsonl`.

    Raises:
        InputError: something in it, or a variable that it names, is missing or wrong; names the file and the key.
    """
    name, tables = _read(settings)
    try:
        routes = {kind: _route(kind, table, tables.destinations) for kind, table in tables.routes.items()}
        makers = {key: _maker(table, settings.home, environment) for key, table in tables.destinations.items()}
        for kind in sorted(NEVER_TWICE):
            _require_safe(kind, routes.get(kind, routes["default"]))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    named = {kind: routes[kind] for kind in routes if kind != "default"}
    return Delivery(named, routes["default"], makers, _digest(tables))


def read_routes(settings: Settings) -> str:
    """What goes where by `delivery_file`, a line for each route, without the values of secrets.

    The same for files that differ in order, comments, attempts and limits only. A type that goes where all others go
    has no line. Needs none of the variables that the file names.

    Raises:
        InputError: something in the file is missing or wrong; names the file and the key.
    """
    name, tables = _read(settings)
    for kind, table in tables.routes.items():
        try:
            _route(kind, table, tables.destinations)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    return _digest(tables)


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _RouteTable(_Table):
    destination: str
    attempts: int = Field(12, ge=1, le=1000)
    when_dead: WhenDead = "block"
    in_doubt: InDoubt = "hold"
    # None: for ever; where nothing is said, as its kind of destination does.
    remembers: Annotated[Length | None, BeforeValidator(lambda value: None if value == "forever" else value)] = None


class _Document(_Table):
    destinations: Mapping[str, Annotated[AnyDestination, Field(discriminator="transport")]]
    routes: Mapping[str, _RouteTable]


def _read(settings: Settings) -> tuple[str, _Document]:
    """What the file, which is named first, has in its tables."""
    file = delivery_file(settings)
    if file is None:
        return "TICKETFLOW_DELIVERY", _Document.model_validate(UNCONFIGURED)
    name = str(file)
    try:
        tables = _Document.model_validate(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise InputError(f"TICKETFLOW_DELIVERY={name} cannot be read ({error.strerror}); name a TOML file.") from None
    except ValidationError as error:
        raise InputError(f"{name}: {_sentence(error.errors()[0])}") from None
    except ValueError as error:
        raise InputError(f"{name} is not TOML: {error}.") from None
    if "default" not in tables.routes:
        raise InputError(f"{name}: [routes.default] is missing; say where events go that no other route names.")
    return name, tables


def _digest(tables: _Document) -> str:
    lines = {kind: _said(table, tables.destinations[table.destination]) for kind, table in tables.routes.items()}
    default = lines.pop("default")
    named = sorted((kind, line) for kind, line in lines.items() if line != default)
    return "\n".join(f"{kind}: {line}" for kind, line in (("default", default), *named))


def _said(table: _RouteTable, target: AnyDestination) -> str:
    remembers = _remembers(table, target)
    long = "for ever" if remembers is None else f"for {remembers.total_seconds():g} s"
    return f"{table.destination}, {_address(target)}; remembers {long}; in doubt {table.in_doubt}"


def _address(target: AnyDestination) -> str:
    match target:
        case WebhookDestination():
            asked = "" if target.look_up_url is None else f", asked at {_place(target.look_up_url)}"
            return f"webhook {_place(target.url)}{asked}"
        case SmtpDestination():
            return f"smtp {target.host}" + ("" if target.port is None else f":{target.port}")
        case FileDestination():
            return f"file {target.path}"
        case DemoDestination():
            return f"the demo's provider, {target.path}"


def _place(url: str) -> str:
    # Many a receiver is told apart by a secret in the path, which is not to be read in a table.
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc} (URL {hashlib.sha256(url.encode()).hexdigest()[:12]})"


def _remembers(table: _RouteTable, target: AnyDestination) -> timedelta | None:
    return table.remembers if "remembers" in table.model_fields_set else target.remembers


def _route(kind: str, table: _RouteTable, destinations: Mapping[str, AnyDestination]) -> Route:
    if kind != "default":
        try:
            require_event_type(kind)
        except InputError as error:
            raise InputError(f"routes.{kind}: {error}") from None
    target = destinations.get(table.destination)
    if target is None:
        raise InputError(
            f"routes.{kind}.destination = {table.destination!r} is no destination; "
            f"describe it in [destinations.{table.destination}]."
        )
    if isinstance(target, SmtpDestination) and kind not in MAILS:
        raise InputError(
            f"routes.{kind}.destination = {table.destination!r} takes nothing but mails, which are "
            f"{', '.join(sorted(MAILS))}; name a webhook or a file."
        )
    if isinstance(target, DemoDestination) and kind not in NEVER_TWICE:
        raise InputError(
            f"routes.{kind}.destination = {table.destination!r} takes nothing but payouts, which are "
            f"{' and '.join(sorted(NEVER_TWICE))}; name a webhook or a file."
        )
    if table.in_doubt == "look_up" and not (isinstance(target, WebhookDestination) and target.look_up_url):
        raise InputError(
            f"routes.{kind}.in_doubt = 'look_up' cannot be done; "
            f"{table.destination} would have to be a webhook with a look_up_url."
        )
    remembers = _remembers(table, target)
    if table.in_doubt == "look_up" and remembers is None:
        raise InputError(
            f"routes.{kind}.in_doubt = 'look_up' has no effect on a receiver that never forgets; "
            "say how long it remembers."
        )
    return Route(
        destination=table.destination,
        attempts=table.attempts,
        when_dead=table.when_dead,
        in_doubt=table.in_doubt,
        remembers=remembers,
        limit=target.limit,
        takes_mails=target.takes_mails,
    )


def _require_safe(kind: str, route: Route) -> None:
    if route.in_doubt == "resend":
        raise InputError(
            f"routes.{kind}.in_doubt = 'resend' could do twice what nobody can undo; write 'look_up' or 'hold'."
        )


def _maker(destination: AnyDestination, home: Path, environment: Mapping[str, str]) -> Callable[[], Transport]:
    if isinstance(destination, WebhookDestination):
        return partial(_webhook, destination, webhook_secrets(destination, environment))
    if isinstance(destination, SmtpDestination):
        return partial(SmtpTransport, destination, smtp_password(destination, environment))
    file = DemoProvider if isinstance(destination, DemoDestination) else FileTransport
    return partial(file, home / destination.path)


def _webhook(destination: WebhookDestination, secrets: WebhookSecrets) -> Transport:
    # Every run reads the configuration, and few speak HTTP.
    from ticketflow_orch.delivery.webhook import WebhookTransport

    return WebhookTransport(destination, secrets)


def _sentence(fault: ErrorDetails) -> str:
    # pydantic puts the chosen transport into the path of a destination's key, where the file has nothing.
    match [str(step) for step in fault["loc"]]:
        case ["destinations", name, _, option, *further]:
            path = ["destinations", name, option, *further]
        case ["destinations", name, *_]:
            path = ["destinations", name]
        case path:
            pass
    key = ".".join(path)
    # The value may be a secret, written where the name of its variable belongs, or into the URL.
    secret = not {"secrets", "headers", "password", "url", "look_up_url"}.isdisjoint(path)
    given = "" if secret or isinstance(fault["input"], dict) else f" = {fault['input']!r}"
    if fault["type"] == "missing":
        return f"{key} is missing; give it a value."
    if fault["type"] == "extra_forbidden":
        return f"{key} is no option; correct its name or leave it out."
    if secret and fault["type"] == "string_pattern_mismatch":
        return f"{key} is refused: name the environment variable that holds the value, never the value."
    return f"{key}{given} is refused: {fault['msg'].removeprefix('Value error, ')}."
