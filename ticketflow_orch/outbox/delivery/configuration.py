"""Which events go where, read from one TOML file and validated as a whole before anything is delivered."""

from __future__ import annotations

import hashlib
import os
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.outbox.delivery import Transport
from ticketflow_orch.outbox.delivery.demo import DemoProvider
from ticketflow_orch.outbox.delivery.destinations import (
    DemoDestination,
    FileDestination,
    SmtpDestination,
    WebhookDestination,
    WebhookSecrets,
    smtp_password,
    webhook_secrets,
)
from ticketflow_orch.outbox.delivery.file import FileTransport
from ticketflow_orch.outbox.delivery.smtp import SmtpTransport
from ticketflow_orch.outbox.events import ALERTS, MAILS, NEVER_TWICE, require_event_type
from ticketflow_orch.settings import Length, Settings

AnyDestination = WebhookDestination | SmtpDestination | FileDestination | DemoDestination
WhenDead = Literal["block", "skip"]
InDoubt = Literal["resend", "hold", "look_up"]
# Without a file of their own all events are only written down.
UNCONFIGURED = {"destinations": {"file": {"transport": "file"}}, "routes": {"default": {"destination": "file"}}}
# To those who hold a ticket; where nothing else is said, the notices go where the reminders go.
_REMINDERS, _NOTICES = "ReminderDue", ("EventCancelled", "ReminderChanged")
# In TICKETFLOW_HOME, for every process that works there.
HOME_FILE = "delivery.toml"
# What the configuration calls the route of all alerts, and where those go that cannot go there.
ALERTS_ROUTE = "alerts"
ALERTS_FILE = "alerts-file"
# Payouts and alerts are not given up over a long weekend.
GIVES_UP_AFTER = timedelta(days=3)
GIVES_UP_AFTER_ALERTS = timedelta(days=30)
_GIVES_UP_LATER = {
    **dict.fromkeys(NEVER_TWICE, timedelta(days=21)),
    **dict.fromkeys(ALERTS, GIVES_UP_AFTER_ALERTS),
}
_ALERTS_FILE = FileDestination(transport="file", path=Path("alerts.jsonl"))


@dataclass(frozen=True, slots=True)
class Route:
    """Where events of a type go, and what becomes of those that do not arrive.

    `attempts`: after so many that count an event is dead, None: never by their number. `when_dead`: a dead event keeps
    later ones of its aggregate waiting (block) or not (skip). `remembers`: how long the receiver recognises an event
    id, None for ever; where an event may have arrived longer ago than that, `in_doubt` says whether it is sent
    again, held for a person, or looked up. `limit`: no attempt takes longer, so a lease lasts for more. `takes_mails`:
    what is rendered as a mail is sent as one there, and as JSON like everything elsewhere. `gives_up_after`: an event
    that fails so long after its first attempt is dead. `otherwise`: the route that its events
    take while `destination` is stopped or fails.
    """

    destination: str
    attempts: int | None
    when_dead: WhenDead
    in_doubt: InDoubt
    remembers: timedelta | None
    limit: timedelta
    takes_mails: bool = True
    gives_up_after: timedelta = GIVES_UP_AFTER
    otherwise: Route | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a destination is sent at most: events a `rate` second by all relays together, at once by each relay."""

    rate: float | None = None
    concurrency: int = 16


@dataclass(frozen=True)
class Delivery:
    """The routes and, made when first asked for, their transports.

    `routes` are those of the event types that the configuration names; all others take `default`, alerts `alerts`
    where it is there. `digest` says what goes where, see `read_routes`. `allowances` are those of destinations that
    say something about it.
    """

    routes: Mapping[str, Route]
    default: Route
    _makers: Mapping[str, Callable[[], Transport]] = field(repr=False)
    digest: str = field(default="", repr=False)
    alerts: Route | None = None
    allowances: Mapping[str, Allowance] = field(default_factory=dict)
    _made: dict[str, Transport] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def destinations(self) -> frozenset[str]:
        """The names of all destinations."""
        return frozenset(self._makers)

    def route(self, event_type: str) -> Route:
        """The route of `event_type`."""
        found = self.routes.get(event_type)
        if found is not None:
            return found
        return self.alerts if self.alerts is not None and event_type in ALERTS else self.default

    def every_route(self) -> tuple[Route, ...]:
        """All routes that an event may take, those of the other ways included."""
        named = (self.default, *self.routes.values(), *(() if self.alerts is None else (self.alerts,)))
        return (*named, *(route.otherwise for route in named if route.otherwise is not None))

    def route_to(self, event_type: str, destination: str) -> Route:
        """The route by which an event of `event_type` goes that was claimed for `destination`."""
        route = self.route(event_type)
        second = route.otherwise
        return second if second is not None and second.destination == destination != route.destination else route

    def allowance(self, destination: str) -> Allowance:
        """What `destination` is sent at most."""
        return self.allowances.get(destination, Allowance())

    def transport(self, destination: str) -> Transport:
        """The transport to `destination`, the same one each time.

        Raises:
            InvalidInput: there is no destination of that name.
        """
        made = self._made.get(destination)
        if made is not None:
            return made
        if destination not in self._makers:
            known = ", ".join(sorted(self._makers))
            raise InvalidInput(f"There is no destination {destination!r}; the configuration of delivery has {known}.")
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
        InvalidInput: something in it, or a variable that it names, is missing or wrong; names the file and the key.
    """
    name, tables = _read(settings)
    try:
        routes = {kind: _route(kind, table, tables.destinations) for kind, table in tables.routes.items()}
        named, alerts = _with_second_ways(routes, tables)
        destinations = dict(tables.destinations)
        if any(route.otherwise is not None for route in (alerts, *named.values())):
            destinations.setdefault(ALERTS_FILE, _ALERTS_FILE)
        makers = {key: _maker(table, settings.home, environment) for key, table in destinations.items()}
        for kind in sorted(NEVER_TWICE):
            _require_safe(kind, routes.get(kind, routes["default"]))
    except TicketflowError as error:
        raise InvalidInput(f"{name}: {error}") from None
    return Delivery(
        routes=named,
        default=routes["default"],
        _makers=makers,
        digest=_digest(tables),
        alerts=alerts,
        allowances={key: Allowance(table.rate, table.concurrency) for key, table in destinations.items()},
    )


def _with_second_ways(routes: Mapping[str, Route], tables: _Document) -> tuple[Mapping[str, Route], Route]:
    """`routes`, and the one of alerts that have none of their own; no alert dies with what it reports.

    Where nobody says another way, a file takes alerts while their destination is stopped or fails.
    """
    alerts = routes.get(ALERTS_ROUTE)
    if alerts is None:
        alerts = replace(routes["default"], attempts=None, gives_up_after=_gives_up_after(ALERTS_ROUTE, None))

    def with_second(route: Route) -> Route:
        if route.otherwise is not None or isinstance(tables.destinations[route.destination], FileDestination):
            return route
        file = tables.destinations.get(ALERTS_FILE, _ALERTS_FILE)
        return replace(route, otherwise=_second(route, ALERTS_FILE, file))

    named = {
        kind: with_second(route) if kind in ALERTS else route
        for kind, route in routes.items()
        if kind not in {"default", ALERTS_ROUTE}
    }
    if _REMINDERS in named:
        # Those who are reminded by mail are notified by mail of what changed since.
        named = dict.fromkeys(_NOTICES, named[_REMINDERS]) | named
    return named, with_second(alerts)


def _second(route: Route, name: str, target: AnyDestination) -> Route:
    return replace(
        route, destination=name, remembers=target.remembers, limit=target.limit, takes_mails=target.takes_mails
    )


def read_routes(settings: Settings) -> str:
    """What goes where by `delivery_file`, a line for each route, without the values of secrets.

    The same for files that differ in order, comments, attempts and limits only. A type that goes where all others go
    has no line. Needs none of the variables that the file names.

    Raises:
        InvalidInput: something in the file is missing or wrong; names the file and the key.
    """
    name, tables = _read(settings)
    for kind, table in tables.routes.items():
        try:
            _route(kind, table, tables.destinations)
        except TicketflowError as error:
            raise InvalidInput(f"{name}: {error}") from None
    return _digest(tables)


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _RouteTable(_Table):
    destination: str
    attempts: int | None = Field(None, ge=1, le=1_000_000)
    gives_up_after: Annotated[Length, Field(gt=timedelta(0))] | None = None
    otherwise: str | None = None
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
        raise InvalidInput(f"TICKETFLOW_DELIVERY={name} cannot be read ({error.strerror}); name a TOML file.") from None
    except ValidationError as error:
        raise InvalidInput(f"{name}: {_sentence(error.errors()[0])}") from None
    except ValueError as error:
        raise InvalidInput(f"{name} is not TOML: {error}.") from None
    if "default" not in tables.routes:
        raise InvalidInput(f"{name}: [routes.default] is missing; say where events go that no other route names.")
    return name, tables


def _digest(tables: _Document) -> str:
    lines = {kind: _said(table, tables.destinations[table.destination]) for kind, table in tables.routes.items()}
    default = lines.pop("default")
    named = sorted((kind, line) for kind, line in lines.items() if line != default)
    return "\n".join(f"{kind}: {line}" for kind, line in (("default", default), *named))


def _said(table: _RouteTable, target: AnyDestination) -> str:
    remembers = _remembers(table, target)
    long = "for ever" if remembers is None else f"for {remembers.total_seconds():g} s"
    return f"{table.destination}, {_address(target)}; remembers {long}; in doubt {table.in_doubt}{_second_way(table)}"


def _second_way(table: _RouteTable) -> str:
    return "" if table.otherwise is None else f"; otherwise {table.otherwise}"


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
    # Many a receiver is known by a secret in the path, which is not to be read in a table.
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc} (URL {hashlib.sha256(url.encode()).hexdigest()[:12]})"


def _remembers(table: _RouteTable, target: AnyDestination) -> timedelta | None:
    return table.remembers if "remembers" in table.model_fields_set else target.remembers


def _route(kind: str, table: _RouteTable, destinations: Mapping[str, AnyDestination]) -> Route:
    target = _target(kind, table, destinations)
    remembers = _remembers(table, target)
    if table.in_doubt == "look_up":
        _require_look_up(kind, table, target, remembers)
    route = Route(
        destination=table.destination,
        attempts=table.attempts,
        when_dead=table.when_dead,
        in_doubt=table.in_doubt,
        remembers=remembers,
        limit=target.limit,
        takes_mails=target.takes_mails,
        gives_up_after=_gives_up_after(kind, table),
    )
    return route if table.otherwise is None else replace(route, otherwise=_otherwise(kind, route, table, destinations))


def _target(kind: str, table: _RouteTable, destinations: Mapping[str, AnyDestination]) -> AnyDestination:
    """The destination of a route, which takes events of its type."""
    if kind not in {"default", ALERTS_ROUTE}:
        try:
            require_event_type(kind)
        except TicketflowError as error:
            raise InvalidInput(f"routes.{kind}: {error}") from None
    target = destinations.get(table.destination)
    if target is None:
        raise InvalidInput(
            f"routes.{kind}.destination = {table.destination!r} is no destination; "
            f"describe it in [destinations.{table.destination}]."
        )
    if isinstance(target, SmtpDestination) and kind not in MAILS:
        raise InvalidInput(
            f"routes.{kind}.destination = {table.destination!r} takes nothing but mails, which are "
            f"{', '.join(sorted(MAILS))}; name a webhook or a file."
        )
    if isinstance(target, DemoDestination) and kind not in NEVER_TWICE:
        raise InvalidInput(
            f"routes.{kind}.destination = {table.destination!r} takes nothing but payouts, which are "
            f"{' and '.join(sorted(NEVER_TWICE))}; name a webhook or a file."
        )
    return target


def _require_look_up(kind: str, table: _RouteTable, target: AnyDestination, remembers: timedelta | None) -> None:
    if not (isinstance(target, WebhookDestination) and target.look_up_url):
        raise InvalidInput(
            f"routes.{kind}.in_doubt = 'look_up' cannot be done; "
            f"{table.destination} would have to be a webhook with a look_up_url."
        )
    if remembers is None:
        raise InvalidInput(
            f"routes.{kind}.in_doubt = 'look_up' has no effect on a receiver that never forgets; "
            "say how long it remembers."
        )


def _gives_up_after(kind: str, table: _RouteTable | None) -> timedelta:
    if table is not None and table.gives_up_after is not None:
        return table.gives_up_after
    return GIVES_UP_AFTER_ALERTS if kind == ALERTS_ROUTE else _GIVES_UP_LATER.get(kind, GIVES_UP_AFTER)


def _otherwise(kind: str, route: Route, table: _RouteTable, destinations: Mapping[str, AnyDestination]) -> Route:
    name = str(table.otherwise)
    if kind != ALERTS_ROUTE and kind not in ALERTS:
        raise InvalidInput(f"routes.{kind}.otherwise is for alerts only, which may come twice; leave it out.")
    target = destinations.get(name)
    if target is None or name == route.destination or not isinstance(target, WebhookDestination | FileDestination):
        raise InvalidInput(
            f"routes.{kind}.otherwise = {name!r} is no other webhook or file; name a destination that is."
        )
    return _second(route, name, target)


def _require_safe(kind: str, route: Route) -> None:
    if route.in_doubt == "resend":
        raise InvalidInput(
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
    from ticketflow_orch.outbox.delivery.webhook import WebhookTransport

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
