"""A relay whose routes are not those of the database delivers and marks nothing, until somebody accepts them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from resources import ClockResource, DatabaseResource, DeliveryResource
from sensors import outbox_relay, relay_outbox_job
from tests.outbox.relay.world import DELIVERED, NOW, Receiver, add, delivery, run, states
from tests.schedules.runs import failure
from tests.support.homes import fresh_home, variables_for
from tests.support.installed import decide
from ticketflow_orch import cli
from ticketflow_orch.db.installation import changes, read_installation
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.installation.agreed_routes import accept_routes, adopt_routes, agreeing, routes_changed
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.delivery import Message, Outcome
from ticketflow_orch.outbox.delivery.configuration import read_routes
from ticketflow_orch.settings import Settings, settings

PROVIDER = """
# Who is paid, and who is informed.
[destinations.provider]
transport = "webhook"
url = "https://pay.example/hook/s3cr3t"
secrets = ["PROVIDER_SECRET"]

[destinations.log]
transport = "file"
path = "log.jsonl"

[routes.default]
destination = "log"

[routes.PayoutRequested]
destination = "provider"
remembers = "PT24H"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "delivery.toml"
    file.write_text(PROVIDER)
    return file


@pytest.fixture
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[Path]:
    """A machine on which TICKETFLOW_DELIVERY is not set, where the database has the routes of a provider."""
    with fresh_home(scratch, TICKETFLOW_FIRST_MONTH="2014-10", **variables_for(url, server.url("unused"))) as home:
        home.mkdir()
        yield home


@pytest.fixture
def paid_elsewhere(engine: Engine, file: Path) -> Engine:
    """The database, which has accepted the provider's routes."""
    accept_routes(engine, routes(file), "ana")
    return engine


def routes(file: Path | None) -> str:
    return read_routes(Settings(delivery=file))


def test_routes_are_the_same_in_another_order_and_with_other_limits(file: Path) -> None:
    before = routes(file)
    provider, log, default, payouts = PROVIDER.split("\n\n")
    named = '[routes.ReminderDue]\ndestination = "log"'
    file.write_text("\n\n".join([log, named, f"{payouts}attempts = 3", default, provider.replace("Who", "They")]))
    assert routes(file) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pay.example", "pay.test"),
        ("s3cr3t", "another"),
        ("log.jsonl", "other.jsonl"),
        ("PT24H", "PT48H"),
        ('[routes.PayoutRequested]\ndestination = "provider"', '[routes.PayoutRequested]\ndestination = "log"'),
    ],
)
def test_routes_that_lead_elsewhere_are_others(file: Path, old: str, new: str) -> None:
    before = routes(file)
    file.write_text(PROVIDER.replace(old, new))
    assert len(routes_changed(before, routes(file))) == 1


def test_no_secret_and_no_path_of_a_url_is_kept(file: Path) -> None:
    assert "https://pay.example (URL " in routes(file)
    assert "s3cr3t" not in routes(file)
    assert "PROVIDER_SECRET" not in routes(file)


def test_the_first_routes_are_taken_over_and_no_later_ones(engine: Engine, file: Path) -> None:
    assert not adopt_routes(engine, Settings(delivery=file), "ana")
    with engine.connect() as connection:
        assert read_installation(connection).routes_digest == routes(None)


def test_who_migrates_a_server_for_others_and_names_no_file_decides_no_routes(
    engine: Engine, home: Path, file: Path
) -> None:
    decide(engine, routes_digest=None)
    assert not adopt_routes(engine, Settings(home=home), "ana", unnamed=False)
    add(engine, "a")
    refused = CliRunner().invoke(cli.app, ["outbox", "deliver"]).exception
    assert str(refused).startswith("Nothing is delivered from here: default goes to file, file outbox.jsonl;")
    assert "by the database to nowhere" in str(refused)
    assert states(engine) == {"a": "PENDING"}
    health = CliRunner().invoke(cli.app, ["health"]).output
    assert "routes: nothing is delivered from here: default goes to file" in health
    assert adopt_routes(engine, Settings(home=home, delivery=file), "ana", unnamed=False)


def test_a_relay_ends_when_the_database_gets_other_routes(engine: Engine) -> None:
    def accept_others(_: Message) -> Outcome:
        accept_routes(engine, "default: elsewhere", "ana")
        time.sleep(1)
        return DELIVERED

    first = Receiver(accept_others)
    for name in ("a", "b"):
        add(engine, name, "one")
    with pytest.raises(TicketflowError, match="Nothing is delivered from here"):
        run(engine, delivery(first), agreed=agreeing(routes(None)))
    assert states(engine) == {"a": "DELIVERED", "b": "PENDING"}


def test_a_payout_in_doubt_is_not_asked_for_again_by_who_does_not_know_whether_it_is_looked_up(
    paid_elsewhere: Engine, home: Path
) -> None:
    asked = ["payouts", "resolve", "--as", "again", "--month", "2026-03"]
    assert "PayoutRequested goes to where all others go" in str(CliRunner().invoke(cli.app, asked).exception)


def test_a_command_with_other_routes_delivers_nothing_and_says_what_is_different(
    paid_elsewhere: Engine, home: Path
) -> None:
    add(paid_elsewhere, "a")
    result = CliRunner().invoke(cli.app, ["outbox", "deliver"])
    assert isinstance(result.exception, TicketflowError), result.output
    assert str(result.exception).startswith(
        "Nothing is delivered from here: default goes to file, file outbox.jsonl; remembers for ever; in doubt hold, "
        "and by the database to log, file log.jsonl"
    )
    assert "`ticketflow installation accept-routes`" in str(result.exception)
    assert states(paid_elsewhere) == {"a": "PENDING"}
    assert list(home.glob("*.jsonl")) == []


def test_a_run_and_its_sensor_with_other_routes_deliver_nothing(paid_elsewhere: Engine, home: Path, url: URL) -> None:
    add(paid_elsewhere, "a")
    resources = {
        "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
        "clock": ClockResource(fixed_at=NOW.isoformat()),
        "delivery": DeliveryResource(),
    }
    with dg.DagsterInstance.ephemeral() as instance:
        result = relay_outbox_job.execute_in_process(instance=instance, resources=resources, raise_on_error=False)
        assert failure(result).startswith("Nothing is delivered from here: ")
        needed = {name: resources[name] for name in ("database", "delivery")}
        with (
            dg.build_sensor_context(instance=instance, resources=needed) as context,
            pytest.raises(Exception, match="Nothing is delivered from here"),
        ):
            outbox_relay.evaluate_tick(context)
    assert states(paid_elsewhere) == {"a": "PENDING"}
    assert list(home.glob("*.jsonl")) == []


def test_routes_are_accepted_by_a_command_that_says_what_changes_and_keeps_who(
    paid_elsewhere: Engine, home: Path
) -> None:
    add(paid_elsewhere, "a")
    said = CliRunner().invoke(cli.app, ["installation", "accept-routes", "--by", "eva"]).output
    assert said.splitlines()[1].startswith("Accepted: PayoutRequested goes to where all others go, and by the database")
    with paid_elsewhere.connect() as connection:
        last = changes(connection)[-1]
    assert (last.name, last.by) == ("routes_digest", "eva")
    again = CliRunner().invoke(cli.app, ["installation", "accept-routes"]).output
    assert again == "The database has these routes already.\n"
    assert CliRunner().invoke(cli.app, ["outbox", "deliver"]).output == "1 delivered\n"
    settings.cache_clear()
