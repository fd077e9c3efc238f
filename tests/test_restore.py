"""A database that is restored, or a standby that lost the last seconds, works again: nobody gets anything twice.

Receivers tell what they have by ids alone, so what is the same thing must have the same id, and another thing another.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.conftest import fresh_database
from tests.support.payable import MARCH, NOW, request, rows
from tests.support.payments import configuration, delivery, pay, states
from tests.support.provider import Provider
from tests.support.provider_by_hand import recorded
from tests.support.restoring import LATER, NAMES, OWED, backup, health, owe
from tests.support.rows import add_organization
from tests.support.sql_statements import execute
from tests.support.standbys import cut_off, programs, standby, until
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.installation import require_agreement
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.actions import Selection
from ticketflow_orch.settings import Settings


@pytest.fixture
def provider(start_provider: Callable[..., Provider]) -> Provider:
    return start_provider()


def ask_and_pay(engine: Engine, provider: Provider, folder: Path, now: datetime = NOW, **route: object) -> None:
    """Request what March owes at `now`, and deliver it."""
    folder.mkdir(exist_ok=True)
    request(engine, now=now)
    pay(engine, delivery(configuration(provider, folder, **route)))


@pytest.mark.every_server
def test_what_was_paid_before_a_restore_is_not_paid_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    with backup(server, engine) as restored:
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        assert states(restored) == states(engine) == {"CONFIRMED": 6}
        known = "SELECT public_id, provider_ref FROM payout ORDER BY 1"
        assert rows(restored, known) == rows(engine, known)
    assert provider.paid == OWED


def test_a_key_that_the_provider_has_forgotten_since_is_looked_up_before_it_is_used_again(
    server: EmbeddedServer, engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider(forget_after=0)
    owe(engine)
    with backup(server, engine) as restored:
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        assert states(restored) == {"CONFIRMED": 6}
    assert provider.paid == OWED


def test_what_a_person_released_before_a_restore_is_asked_for_in_the_same_bytes_after_it(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    request(engine, review_first=True)
    with backup(server, engine) as restored:
        for number, each in enumerate((engine, restored)):
            assert actions.release(each, Selection(MARCH), "ana") == 6
            ask_and_pay(each, provider, tmp_path / str(number), NOW + LATER)
        assert states(restored) == {"CONFIRMED": 6}
    assert provider.paid == OWED


@pytest.mark.parametrize(
    "answer",
    [
        ("hold", "127.0.0.1 answered 422 Unprocessable Entity."),
        ("look_up", "the provider answered about another amount: 1000 instead of 1700"),
    ],
    ids=["by its key", "by our reference"],
)
def test_a_month_that_was_closed_with_another_amount_before_ends_in_doubt_and_pays_nothing(
    server: EmbeddedServer,
    engine: Engine,
    provider: Provider,
    tmp_path: Path,
    answer: tuple[str, str],
) -> None:
    in_doubt, reason = answer
    with backup(server, engine) as restored:
        owe(engine)
        owe(restored, [("org-000", "EUR", 1_700), *OWED[1:]])
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", in_doubt=in_doubt)
        assert states(restored) == {"CONFIRMED": 5, "IN_DOUBT": 1}
        assert rows(restored, "SELECT reason FROM payout WHERE state = 'IN_DOUBT'") == [(reason,)]
        [line] = [line for line in health(restored) if line.startswith("payouts")]
        assert line.startswith("payouts: 1 in doubt; ask the provider, then use `ticketflow payouts resolve`")
        assert rows(restored, "SELECT kind FROM alert WHERE kind LIKE 'Payout%'") == [("PayoutInDoubt",)]
    assert provider.paid == OWED


def test_numbers_that_are_given_anew_after_a_restore_name_nobody_else_s_money(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    with backup(server, engine) as restored:
        owe(engine, OWED[:4], NAMES[:4])
        owe(restored, OWED[2:], NAMES[:1:-1])
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        numbers = "SELECT organization_id FROM payout ORDER BY 1"
        assert rows(engine, numbers) == rows(restored, numbers)
        assert states(restored) == {"CONFIRMED": 4}
    assert provider.paid == OWED


def test_a_database_whose_installation_did_not_name_what_is_in_it_is_refused_by_everybody(
    server: EmbeddedServer, engine: Engine
) -> None:
    owe(engine)
    request(engine, review_first=True)
    with backup(server, engine) as restored:
        execute(restored, "ALTER TABLE installation DISABLE TRIGGER ALL")
        execute(restored, "UPDATE installation SET id = gen_random_uuid()")
        with restored.connect() as connection, pytest.raises(TicketflowError, match="was named under another: a dump"):
            require_agreement(connection, Settings())
        [line] = [line for line in health(restored) if line.startswith("settings: The row of installation")]
        assert line.endswith("restore the whole dump into a new database that nobody has migrated.")


def test_another_installation_asks_under_ids_of_its_own(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    with backup(server, engine) as other:
        execute(other, "ALTER TABLE installation DISABLE TRIGGER ALL")
        execute(other, "UPDATE installation SET id = gen_random_uuid()")
        for number, each in enumerate((engine, other)):
            owe(each)
            ask_and_pay(each, provider, tmp_path / str(number))
    assert len(provider.paid) == 12


# --- Dumps and standbys


@pytest.mark.every_server
def test_a_dump_that_is_restored_elsewhere_pays_nobody_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    dump = tmp_path / "dump"
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    subprocess.run([programs(server) / "pg_dump", "-Fc", "-f", dump, url], check=True)
    ask_and_pay(engine, provider, tmp_path / "a")
    with fresh_database(server, "template0") as elsewhere:
        into = elsewhere.render_as_string(hide_password=False)
        subprocess.run([programs(server) / "pg_restore", "-d", into, "--exit-on-error", dump], check=True)
        restored = connect_engine(elsewhere, "restored", connections=10)
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        assert states(restored) == {"CONFIRMED": 6}
        restored.dispose()
    assert provider.paid == OWED


def test_a_standby_that_lost_the_last_seconds_pays_nobody_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path, scratch: Path
) -> None:
    place = scratch / "standby"
    owe(engine, OWED[:4], NAMES[:4])
    with standby(server, place) as behind:
        following = connect_engine(behind.url(str(engine.url.database)), "standby", connections=10)
        [(written,)] = rows(engine, "SELECT CAST(pg_current_wal_lsn() AS text)")
        until(following, f"SELECT pg_last_wal_replay_lsn() >= CAST('{written}' AS pg_lsn)")
        cut_off(following)
        # The seconds that are lost: new organizations, and all that was paid.
        add_organization(engine, external_ref="lost")
        ask_and_pay(engine, provider, tmp_path / "a")
        assert rows(following, "SELECT count(*) FROM payout") == [(0,)]
        rows(following, "SELECT pg_promote()")
        until(following, "SELECT NOT pg_is_in_recovery()")
        following.dispose()
        for name in NAMES[4:]:
            add_organization(following, external_ref=name)
        ask_and_pay(following, provider, tmp_path / "b", NOW + LATER)
        assert states(following) == {"CONFIRMED": 4}
        following.dispose()
    assert provider.paid == OWED[:4]
    assert not place.exists() or not list(place.glob("postgres/*"))
    shutil.rmtree(place, ignore_errors=True)


def test_a_doubt_that_comes_up_again_after_a_restore_is_told_again(server: EmbeddedServer, engine: Engine) -> None:
    owe(engine, OWED[:1])
    request(engine)
    with backup(server, engine) as restored:
        ids = set()
        for each in (engine, restored):
            recorded(each, "DEAD")
            ids |= set(rows(each, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutInDoubt'"))
        assert len(ids) == 2
