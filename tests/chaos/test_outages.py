"""Whatever fails under running schedules and a backfill comes back by itself: nothing lost, nothing done twice.

`OUTAGES=all` goes through every cause, each for its time; the suite takes the first for a few seconds. `OUTAGES` may
also name some, by words of theirs: `OUTAGES="disk hangs"`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, text

from tests.chaos.plain_host import PlainHost, plain_host
from tests.chaos.small_disk import can_mount, clear, fill, small_disk
from tests.end_to_end.back_office import UNDER_WAY, BackOffice
from tests.end_to_end.chain import confirmed, request_chain
from tests.support.payments import SECRET, configuration
from tests.support.provider import Provider
from tests.support.rows import add_event, add_organization, add_reservation
from tests.support.silence import can_cut
from tests.support.sinks.smtp_server import SmtpServer
from ticketflow_orch.dagster_host.run_workers import RunWorker
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.months import Month

OUTAGES = os.environ.get("OUTAGES", "")
SHORT = 5.0  # seconds, of any cause in the suite
# How long after its cause has ended everything must be as if there had been none.
WITHIN = 180.0
MAIL = """
[destinations.mail]
transport = "smtp"
host = "127.0.0.1"
port = {port}
security = "none"

[routes.ReminderDue]
destination = "mail"
"""
HELD, HOLDERS = 20, 30
SOON = 3.0  # seconds
LATE = 45.0  # seconds: from then on health names what is not delivered

pytestmark = pytest.mark.timeout(3600)


@dataclass(frozen=True, slots=True)
class Scene:
    """A host at work, who pays and who takes its mail."""

    host: PlainHost
    office: BackOffice
    provider: Provider
    mail: SmtpServer
    months: Iterator[str]

    def faults(self) -> list[str]:
        """What health names, but for months that nobody has settled yet."""
        said = self.host.run("health").stdout.splitlines()
        return [line for line in said if line != "ok" and not re.match(r"\d{4}-\d\d ", line)]

    def wait_for(self, condition: Callable[[], bool], what: str, patience: float = WITHIN) -> None:
        """Wait, for at most so many seconds; a failure says what the last runs did."""
        try:
            self.office.wait_for(condition, what, patience)
        except AssertionError as error:
            error.add_note(self._story())
            raise

    def _story(self) -> str:
        """What health says, and what the last runs did last."""
        lines = [f"health: {line}" for line in self.faults()]
        for run in self.office.runs()[:12]:
            work = run.tags.get("dagster/partition") or run.tags.get("dagster/schedule_name") or ""
            lines.append(f"{run.id} {run.status} {run.started} {work}")
            events = self.office.events(run.id)
            lines += [f"    {event['timestamp']} {event['message'][:300]}" for event in events[-4:]]
            lines += [f"    {json.dumps(event['error'])}" for event in events if event.get("error")]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Cause:
    """What fails, for how many seconds, what ends it, and how a line of `ticketflow health` begins that names it.

    `first`: it has begun when the work begins.
    """

    begin: Callable[[Scene], object]
    end: Callable[[Scene], object]
    named: str | None = None
    lasts: float = 30.0
    first: bool = False


def server_killed(scene: Scene) -> None:
    pid = scene.host.server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def server_signalled(number: int) -> Callable[[Scene], None]:
    def send(scene: Scene) -> None:
        pid = scene.host.server.pid()
        assert pid is not None
        server = psutil.Process(pid)
        for process in [server, *server.children()]:
            process.send_signal(number)

    return send


def workers_signalled(number: int) -> Callable[[Scene], None]:
    """To the processes of all runs that have not ended."""

    def send(scene: Scene) -> None:
        for run in scene.office.runs():
            worker = RunWorker.named(run.id, run.tags) if run.status in UNDER_WAY else None
            if worker is not None:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(worker.process.pid).send_signal(number)

    return send


def held(service: str, named: str | None, lasts: float) -> Cause:
    """A service that is stopped in order and stays away."""
    return Cause(lambda scene: scene.host.hold(service), lambda scene: scene.host.release(service), named, lasts)


def killed(service: str) -> Cause:
    """A service that is killed and started again by who supervises it."""
    return Cause(lambda scene: scene.host.kill(service), nothing, lasts=SHORT)


def mailing(behaviour: str) -> Cause:
    """A mail server that does something else than its work."""
    return away(lambda scene: scene.mail.script.always(behaviour), lambda scene: scene.mail.script.always("ok"))


def away(begin: Callable[[Scene], object], end: Callable[[Scene], object]) -> Cause:
    """Somebody outside, to whom events are delivered."""
    return Cause(begin, end, "outbox:", 90, first=True)


def nothing(_: Scene) -> None:
    """What ends by itself."""


def start_server(scene: Scene) -> None:
    scene.host.server.start()


def make_room(scene: Scene) -> None:
    clear(scene.host.home)
    # What a full disk ends, somebody starts again.
    if not scene.host.server.is_running():
        scene.host.server.start()


CAUSES: Mapping[str, Cause] = {
    "Postgres is killed": Cause(server_killed, start_server, "database:"),
    "Postgres is stopped": Cause(lambda scene: scene.host.server.stop("fast"), start_server, "database:", 120),
    "Postgres is cut off": Cause(lambda scene: scene.host.server.stop("immediate"), start_server, "database:"),
    "Postgres restarts": Cause(lambda scene: scene.host.server.stop("fast"), start_server, lasts=1),
    "Postgres hangs": Cause(server_signalled(signal.SIGSTOP), server_signalled(signal.SIGCONT), "database:", 60),
    "packets are dropped": Cause(
        lambda scene: scene.host.line.cut(), lambda scene: scene.host.line.restore(), "database:", 60
    ),
    "the disk is full": Cause(lambda scene: fill(scene.host.home), make_room, "disk:", 60),
    "the code server is killed": killed("code-server"),
    "the code server is away": held("code-server", "code", 120),
    "the daemon is killed": killed("daemon"),
    "the daemon is away": held("daemon", "daemon:", 120),
    "the webserver is killed": killed("webserver"),
    "the webserver is away": held("webserver", None, 30),
    "workers are killed": Cause(workers_signalled(signal.SIGKILL), nothing, lasts=SHORT),
    "workers are terminated": Cause(workers_signalled(signal.SIGTERM), nothing, lasts=SHORT),
    "workers hang": Cause(workers_signalled(signal.SIGSTOP), workers_signalled(signal.SIGCONT)),
    "the provider is away": away(lambda scene: scene.provider.kill(), lambda scene: scene.provider.start()),
    "the provider is busy": away(lambda scene: scene.provider.behave(busy=1), lambda scene: scene.provider.behave()),
    "the mail server refuses": mailing("closing"),
    "the mail server is silent": mailing("no greeting"),
}
IMPOSSIBLE = {
    "packets are dropped": not can_cut(),
    "the disk is full": not can_mount(),
}


def chosen() -> list[str]:
    """The causes of this run of the suite."""
    if OUTAGES in {"", "all"}:
        return list(CAUSES) if OUTAGES else list(CAUSES)[:1]
    return [cause for cause in CAUSES if set(OUTAGES.split()) & set(cause.split())]


@pytest.fixture(scope="module")
def scene(scratch: Path) -> Iterator[Scene]:
    """A host on which the demo's organizations have sold for as many months as there are causes to try."""
    home = scratch / "outage"
    home.mkdir()
    with small_disk(home) if can_mount() else nullcontext():
        yield from _at_work(home, scratch)


def _at_work(home: Path, outside: Path) -> Iterator[Scene]:
    long_over = datetime.now(UTC) - timedelta(days=62)
    last = Month(long_over.year, long_over.month)
    months = [last]
    while len(months) < len(chosen()):
        months.insert(0, months[0].previous())
    provider = Provider(outside / "provider.jsonl")
    provider.start()
    with SmtpServer() as mail:
        file = configuration(provider, outside, deadline=20)
        file.write_text(file.read_text("utf-8") + MAIL.format(port=mail.port), "utf-8")
        try:
            with plain_host(
                home,
                TICKETFLOW_FIRST_MONTH=str(months[0]),
                TICKETFLOW_PAYOUTS_FROM=str(months[0]),
                TICKETFLOW_PAYOUT_REVIEW_FACTOR="1000",
                TICKETFLOW_DELIVERY=str(file),
                TICKETFLOW_OUTBOX_LATE=str(int(LATE)),
                **SECRET,
            ) as (host, office):
                load_demo(office.engine, last, len(months), 20)
                scene = Scene(host, office, provider, mail, iter(map(str, months)))
                # The demo's events are long over; and nobody is reminded who was due before the first look.
                for job in ("close_events_job", "send_reminders_job"):
                    office.wait_for_run(office.launch(job))
                scene.wait_for(lambda: scene.faults() == [], "a host in order")
                yield scene
        finally:
            provider.kill()


@pytest.mark.parametrize("cause", [cause for cause in chosen() if not IMPOSSIBLE.get(cause)])
def test_everything_comes_back_by_itself_and_every_effect_is_there_once(scene: Scene, cause: str) -> None:
    outage, month = CAUSES[cause], next(scene.months)
    if outage.first:
        outage.begin(scene)
    references, holders = reserve(scene.office.engine, cause)
    # Reminders are due a day before, and for nobody who was due before there were any.
    time.sleep(SOON)
    request_chain(scene.office, [month])
    scene.office.launch("send_reminders_job")
    scene.wait_for(lambda: in_ledger(scene.office.engine, month), "the first entries")

    if not outage.first:
        outage.begin(scene)
    began = time.monotonic()
    try:
        if OUTAGES and outage.named:
            scene.wait_for(lambda: is_named(scene, str(outage.named)), "health to name it", outage.lasts)
        time.sleep(max(0, (outage.lasts if OUTAGES else SHORT) - (time.monotonic() - began)))
    finally:
        outage.end(scene)
    ended = time.monotonic()

    for what, condition in {
        "the month to be paid and its statements to be issued": lambda: is_done(scene, month),
        "the reservations to expire": lambda: expired(scene.office.engine, references) == len(references),
        "health to name nothing any more": lambda: scene.faults() == [],
    }.items():
        scene.wait_for(condition, what, WITHIN - (time.monotonic() - ended))
    scene.office.launch("send_reminders_job")
    scene.wait_for(lambda: set(holders) <= mailed(scene).keys(), "the reminders")
    scene.wait_for(lambda: set(references) <= announced(scene.host.home).keys(), "the news of what expired")
    assert {mailed(scene)[holder] for holder in holders} == {1}
    assert scene.provider.paid == confirmed(scene.office.engine)
    assert {announced(scene.host.home)[reference] for reference in references} == {1}
    audit = scene.host.run("audit")
    assert audit.returncode == 0, audit.stdout


def is_named(scene: Scene, beginning: str) -> bool:
    return any(line.startswith(beginning) for line in scene.faults())


def reserve(engine: Engine, cause: str) -> tuple[list[str], list[str]]:
    """References of what is held for a moment, and the addresses of who has tickets for an event of tomorrow."""
    name = cause.replace(" ", "-").lower()
    now = datetime.now(UTC)
    tomorrow = {"starts_at": now + timedelta(hours=24, seconds=SOON), "ends_at": now + timedelta(hours=26)}
    event = add_event(engine, add_organization(engine), **tomorrow)
    held = [f"{name}-{number}" for number in range(HELD)]
    for number, reference in enumerate(held):
        due = now + timedelta(seconds=3 * number)
        add_reservation(engine, event, public_ref=reference, created_at=now - timedelta(minutes=15), expires_at=due)
    holders = [f"{name}-{number}@example.com" for number in range(HOLDERS)]
    # Long enough ago: who has just bought is not reminded.
    bought = now - timedelta(days=2)
    for address in holders:
        add_reservation(engine, event, buyer_email=address, status="CONFIRMED", created_at=bought, confirmed_at=bought)
    return held, holders


def in_ledger(engine: Engine, month: str) -> bool:
    return bool(_count(engine, "ledger_entry WHERE month = CAST(:month AS date)", month=f"{month}-01"))


def is_done(scene: Scene, month: str) -> bool:
    """Whether the month is closed, all of its payouts are confirmed, and its statements lie there."""
    engine, first = scene.office.engine, f"{month}-01"
    return (
        _count(engine, "settlement_period WHERE state = 'CLOSED' AND month = CAST(:month AS date)", month=first) == 1
        and _count(engine, "payout WHERE month = CAST(:month AS date) AND state <> 'CONFIRMED'", month=first) == 0
        and _count(engine, "payout WHERE month = CAST(:month AS date)", month=first) > 0
        and (scene.host.home / "statements" / month / "statements.csv").is_file()
    )


def expired(engine: Engine, references: list[str]) -> int:
    return _count(engine, "reservation WHERE status = 'EXPIRED' AND public_ref = ANY (:held)", held=references)


def mailed(scene: Scene) -> Counter[str]:
    """How many mails each address has got."""
    return Counter(mail.recipient for mail in scene.mail.stored)


def announced(home: Path) -> Counter[str]:
    """How many events tell the file that each reservation has expired, however often each of them was written.

    A disk that was full may have left a part of a line.
    """
    events = {}
    for line in (home / "outbox.jsonl").read_text("utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            event = json.loads(line)
            if event["event_type"] == "ReservationExpired":
                events[event["event_id"]] = event["aggregate"]["id"]
    return Counter(events.values())


def _count(engine: Engine, question: str, **values: object) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {question}"), values).scalar_one())
