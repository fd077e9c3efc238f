"""Everything that can be configured, read from the environment once and validated."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, SecretStr, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ticketflow_orch.clock import is_in_reach
from ticketflow_orch.errors import InvalidInput, PreconditionFailed, TicketflowError
from ticketflow_orch.formatting.mail_addresses import mail_address
from ticketflow_orch.formatting.text import is_text
from ticketflow_orch.months import Month, zone
from ticketflow_orch.secret_variables import FILE, secret


def _month_key(value: str) -> str:
    return str(Month.parse(value))


def _zone_name(value: str) -> str:
    return zone(value).key


def _seconds(value: object) -> object:
    # "30:00", which pydantic would take, is hours to some and minutes to others.
    if not isinstance(value, str) or re.fullmatch(r"P[0-9DHMSTW.]+", value):
        return value
    try:
        # nan and inf are refused here too.
        return timedelta(seconds=float(value))
    except (ValueError, OverflowError):
        raise ValueError("write a length of time in ISO 8601, such as PT30M or P1D, or in seconds") from None


def _moment(value: object) -> object:
    # Digits alone, such as 20260101, would be seconds since 1970 to pydantic.
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+", value.strip()):
        raise ValueError("write an instant in ISO 8601 with an offset, such as 2026-03-01T00:00:00+01:00")
    return value


def _in_reach(value: datetime) -> datetime:
    if not is_in_reach(value):
        raise ValueError("write an instant from 1970 to 9998")
    return value


def _within_a_century(value: timedelta) -> timedelta:
    # Longer ones lead out of the calendar.
    if abs(value) > timedelta(days=36_525):
        raise ValueError("write a length of time of at most P36525D, a hundred years")
    return value


def _longer_than_a_month(value: timedelta) -> timedelta:
    if value < timedelta(days=40):
        raise ValueError("keep records for P40D or longer, since a monthly window is judged by its firing")
    return value


def _sender(value: str) -> str:
    address = mail_address(value)
    if address is None or address.needs_smtputf8:
        raise ValueError("write an e-mail address, such as tickets@example.com")
    return str(address)


def _unsubscribe(value: str) -> str:
    # It becomes part of a header, between angle brackets.
    if re.fullmatch(r"(https://|mailto:)[!-;=?-~]+", value) is None or "{" in value.replace("{token}", ""):
        raise ValueError("write an https: or mailto: URL in ASCII, with {token} where the mail's own id belongs")
    return value


def _hosts(value: str) -> str:
    for name in value.split(",") if value else ():
        if re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name.strip()) is None:
            raise ValueError("write names of hosts between commas, without ports, such as back.example.com,10.0.0.7")
    return value


def _locale(value: str) -> str:
    if re.fullmatch(r"[A-Za-z]{2,3}([_-][A-Za-z0-9]+)*", value) is None:
        raise ValueError("write a locale, such as es or en_GB")
    return value


def _json_object(value: object) -> object:
    try:
        kinds = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        kinds = None
    if not isinstance(kinds, dict) or not kinds:
        raise ValueError('write a JSON object of kinds and how long before the start each reminds: {"24h": "PT24H"}')
    return kinds


_Span = Annotated[timedelta, AfterValidator(_within_a_century), BeforeValidator(_seconds)]
Length = Annotated[_Span, Field(ge=timedelta(0))]
Retention = Annotated[_Span, AfterValidator(_longer_than_a_month)]
Lead = Annotated[_Span, Field(gt=timedelta(0))]
Moment = Annotated[AwareDatetime, AfterValidator(_in_reach), BeforeValidator(_moment)]
# Of how a settlement is carried out: what a database and a clock can take.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "chunk_size": (1, 10_000_000),
    "chunk_pause": (0, 3600),
    "workers": (1, 32),
    "writer_wait": (0.001, 86_400),
    "shards": (1, 32),
}
ChunkSize = Annotated[int, Field(ge=BOUNDS["chunk_size"][0], le=BOUNDS["chunk_size"][1])]
ChunkPause = Annotated[float, Field(ge=BOUNDS["chunk_pause"][0], le=BOUNDS["chunk_pause"][1])]
Workers = Annotated[int, Field(ge=BOUNDS["workers"][0], le=BOUNDS["workers"][1])]
WriterWait = Annotated[float, Field(ge=BOUNDS["writer_wait"][0], le=BOUNDS["writer_wait"][1])]
Shards = Annotated[int, Field(ge=BOUNDS["shards"][0], le=BOUNDS["shards"][1])]
# The kind is part of keys, between colons.
Kind = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]


_PREFIX = "TICKETFLOW_"


class Settings(BaseSettings):
    """One field per variable `TICKETFLOW_<FIELD>`; every default suits a laptop."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True)

    home: Path = Field(Path(".ticketflow"), description="Where the embedded server and Dagster's instance live.")
    database_url: SecretStr | None = Field(None, description="TicketFlow's database; unset: the embedded server.")
    dagster_database_url: SecretStr | None = Field(
        None, description="Dagster's own storage; needed exactly when database_url is set."
    )
    business_timezone: Annotated[str, AfterValidator(_zone_name)] = Field(
        "Europe/Madrid", description="IANA zone of the schedules and of the partitions' calendar."
    )
    first_month: Annotated[str, AfterValidator(_month_key)] = Field(
        "2025-01", description="YYYY-MM; the first partition. Earlier movements are refused at import."
    )
    fixed_clock: Moment | None = Field(
        None, description="ISO instant with offset; business time stands still there (demos, rehearsals)."
    )
    chunk_size: ChunkSize = Field(20_000, description="Organizations settled per transaction.")
    chunk_pause: ChunkPause = Field(0, description="Seconds a settlement worker rests between two chunks.")
    workers: Workers = Field(2, description="Settlement workers (threads, one connection each) per run.")
    writer_wait: WriterWait = Field(
        60,
        description="Seconds a settlement waits for transactions that were writing movements at its cutoff.",
    )
    shard_above: int = Field(
        1_000_000,
        ge=1,
        le=1_000_000_000,
        description="Organizations per run above which the settlement's schedule lets further runs share a month.",
    )
    max_shards: Shards = Field(1, description="Runs that share a month at most, where its schedule decides by size.")
    parked_limit: int = Field(100, ge=0, le=1_000_000, description="Organizations a pass may park before it gives up.")
    auto_close: bool = Field(
        True, description="Whether the schedule closes settled months whose checks are green; else people do."
    )
    closing_grace: Length = Field(timedelta(0), description="How long after its end an event is closed.")
    expiry_delay: Length = Field(
        timedelta(0), description="How long after its time a reservation expires: for payments that come offline."
    )
    payment_grace: Length = Field(
        timedelta(minutes=30),
        description="How long a payment may be in flight, or money wait for a ticket, before it is reported as stuck.",
    )
    reminder_kinds: Annotated[Mapping[Kind, Lead], NoDecode, BeforeValidator(_json_object)] = Field(
        {"24h": timedelta(hours=24)}, description="JSON: how long before the event's start each kind reminds."
    )
    reminder_quiet: Length = Field(
        timedelta(hours=2), description="How long after buying nobody is reminded of what they have just bought."
    )
    payouts_from: Annotated[str, AfterValidator(_month_key)] | None = Field(
        None,
        description="YYYY-MM; the first month that is paid, for a database that is made; see `payouts from`.",
    )
    payout_review_factor: Decimal = Field(
        Decimal(3),
        gt=0,
        le=1_000_000,
        description="A month's payouts of a currency wait for a person above this many times the greatest of the last.",
    )
    payout_review_first: bool = Field(
        False, description="Whether the first payouts of a currency, which have nothing to compare with, wait too."
    )
    payout_review_anomalies: Decimal = Field(
        Decimal("0.1"),
        ge=0,
        description="A payout waits for a person where what is wrong with its organization's movements exceeds this "
        "share of it.",
    )
    mail_from: Moment | None = Field(
        None, description="ISO instant with offset; what was due before it is loaded history and mails nobody."
    )
    mail_sender: Annotated[str, AfterValidator(_sender)] = Field(
        "tickets@localhost", description="Address that mails come from; its domain names them too."
    )
    mail_unsubscribe: Annotated[str, AfterValidator(_unsubscribe)] | None = Field(
        None,
        description="URL (https: or mailto:) by which readers of reminders say that they want no more; {token} in it "
        "stands for the mail's own id. Unset: reminders offer none.",
    )
    mail_cancellations: bool = Field(
        False, description="Whether ticket holders get a mail when their event is cancelled."
    )
    mail_locale: Annotated[str, AfterValidator(_locale)] = Field(
        "en", description="Locale of mails and statements for organizations that have none, such as es or en_GB."
    )
    statements_place: str | None = Field(
        None,
        description="Folder or URL (s3://bucket/statements) where statements are put; unset: <home>/statements.",
    )
    delivery: Path | None = Field(
        None,
        description="TOML file of destinations and routes; unset: <home>/delivery.toml; without one, events are "
        "written to <home>/outbox.jsonl.",
    )
    allowed_hosts: Annotated[str, AfterValidator(_hosts)] = Field(
        "",
        description="Hosts that the web pages answer to besides localhost, between commas; *.example.com is all below.",
    )
    watch_interval: Lead = Field(
        timedelta(minutes=5), description="How often it is asked whether windows were missed or work is overdue."
    )
    relay_budget: Lead = Field(
        timedelta(seconds=50), description="How long a run of the relay goes on beginning deliveries."
    )
    outbox_late: Lead = Field(
        timedelta(minutes=15), description="How long an event may be due for delivery before that is a problem."
    )
    erase_after: Length = Field(
        timedelta(days=60),
        description="How long after its event a reservation with money keeps its buyer's address: for refunds and "
        "disputes; see `ticketflow erase`.",
    )
    runs_kept: Lead = Field(
        timedelta(days=14), description="How long Dagster keeps ended runs of scheduled ops; those of months stay."
    )
    records_kept: Retention = Field(
        timedelta(days=90),
        description="How long delivered events, firings, claims, past reminders and alerts are kept.",
    )

    @property
    def allowed_host_names(self) -> tuple[str, ...]:
        """The names in `allowed_hosts`."""
        return tuple(name.strip() for name in self.allowed_hosts.split(",") if name.strip())


# Those that are also read from a file that a variable with _FILE at its end names.
SECRETS = ("database_url", "dagster_database_url")


def _from_files() -> dict[str, Any]:
    found = {name: secret(f"{_PREFIX}{name.upper()}", os.environ) for name in SECRETS}
    return {name: value for name, value in found.items() if value is not None}


@cache
def settings() -> Settings:
    """The process's settings.

    Raises:
        InvalidInput: a variable holds a value that its field refuses; names the variable, the value's fault and it.
    """
    return read_settings()


def read_settings() -> Settings:
    """The settings as the environment is now; see `settings`.

    Raises:
        InvalidInput: as `settings` does.
        PreconditionFailed: the folder in which the process was started is gone.
    """
    for name, value in os.environ.items():
        if name.upper().startswith(_PREFIX) and not is_text(value):
            # Its value may hold a password.
            raise InvalidInput(f"{name} is not UTF-8; write it in that encoding.")
    try:
        found = Settings(**_from_files())
    except ValidationError as error:
        first = error.errors()[0]
        variable = f"TICKETFLOW_{str(first['loc'][0]).upper()}"
        fault = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{variable}={first['input']!r} is refused: {fault}.") from None
    except TicketflowError as error:
        raise InvalidInput(f"A TICKETFLOW_ variable is refused: {error}") from None
    try:
        home = str(found.home.absolute())
    except FileNotFoundError:
        raise PreconditionFailed("The folder in which this was started is gone; change to another one.") from None
    if not is_text(home):
        raise InvalidInput(f"The folder {home!a} is not UTF-8; set TICKETFLOW_HOME to one whose whole path is.")
    return found


def parse_setting(name: str, value: str) -> str | datetime | bool | None:
    """What `value` comes to as the field `name`, by the rules that its variable has.

    Raises:
        InvalidInput: the field refuses it; names both.
    """
    try:
        parsed: str | datetime | bool | None = getattr(Settings.model_validate({name: value}), name)
    except ValidationError as error:
        fault = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{name} = {value!r} is refused: {fault}.") from None
    except TicketflowError as error:
        raise InvalidInput(f"{name} is refused: {error}") from None
    return parsed


def parse_length(value: str) -> timedelta:
    """A length of time from ISO 8601, such as P3D, or seconds, by the rules that settings have.

    Raises:
        InvalidInput: it is none, or below nothing.
    """
    try:
        return TypeAdapter(Length).validate_python(value)
    except ValidationError as error:
        fault = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{value!r} is no length of time: {fault}.") from None


def unknown_variables(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """A sentence about each TICKETFLOW_ variable that nobody reads, most likely because it is misspelt.

    Variables that the configuration of delivery names are read.
    """
    # Whatever their case, as for those that are read.
    given = {name: name.upper().removeprefix(_PREFIX) for name in environment if name.upper().startswith(_PREFIX)}
    known = [*(name.upper() for name in Settings.model_fields), *(f"{name.upper()}{FILE}" for name in SECRETS)]
    unknown = {name: setting for name, setting in sorted(given.items()) if setting not in known}
    if not unknown:
        return ()
    named = _delivery_configuration(environment)
    return tuple(
        _unknown(name, setting, known) for name, setting in unknown.items() if name.removesuffix(FILE) not in named
    )


def _unknown(name: str, setting: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(setting, known, n=1)
    fix = f"did you mean {_PREFIX}{nearest[0]}?" if nearest else "`ticketflow doctor` lists those there are."
    return f"{name} is set, and no setting has this name; {fix}"


def _delivery_configuration(environment: Mapping[str, str]) -> str:
    try:
        return Path(environment.get(f"{_PREFIX}DELIVERY", "")).read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
