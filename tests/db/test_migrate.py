"""A database is brought to this code's schema, or the error says which way it is off."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from datetime import date

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from tests.conftest import fresh_database
from tests.support.poison import refuse
from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.schema import PAGE, page
from tests.support.sessions import Session
from tests.support.sql_statements import execute
from ticketflow_orch.db import migrate as migrating
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.db.migrate import migrate, require_current_schema
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer

HEAD = "0029"


@pytest.fixture
def empty_url(server: EmbeddedServer) -> Iterator[URL]:
    """The URL of a database without a single table."""
    with fresh_database(server, "template1") as url:
        yield url


@pytest.fixture
def empty(empty_url: URL) -> Iterator[Engine]:
    engine = connect_engine(empty_url, "pytest")
    yield engine
    engine.dispose()


def revision(engine: Engine) -> str:
    with engine.connect() as connection:
        return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())


def test_a_current_schema_is_taken_and_left_alone(engine: Engine, url: URL) -> None:
    require_current_schema(engine)
    assert not migrate(url)


def test_the_page_of_the_schema_is_what_the_migrations_build(url: URL) -> None:
    assert PAGE.read_text("utf-8") == page(url), "`make inventory` writes it anew"


@pytest.mark.every_server
def test_asking_again_and_again_leaves_nothing_behind(engine: Engine) -> None:
    require_current_schema(engine)
    before = atexit._ncallbacks()
    for _ in range(5):
        require_current_schema(engine)
    assert atexit._ncallbacks() == before


def test_the_revisions_come_in_the_order_of_their_files() -> None:
    config = Config()
    config.set_main_option("script_location", "ticketflow_orch:migrations")
    walked = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert list(migrating.revisions()) == walked[::-1]


def test_an_empty_database_is_behind_until_it_is_migrated(empty: Engine, empty_url: URL) -> None:
    with pytest.raises(TicketflowError) as caught:
        require_current_schema(empty)
    sentence = f"The database's schema is behind this code (empty < {HEAD}); run `ticketflow migrate`."
    assert str(caught.value) == sentence
    assert migrate(empty_url)
    require_current_schema(empty)
    assert not migrate(empty_url)


def test_a_schema_that_is_behind_names_both_revisions(empty: Engine, empty_url: URL) -> None:
    for reached in ("0001", "0002"):
        assert migrate(empty_url, reached)
        assert revision(empty) == reached
        with pytest.raises(
            TicketflowError, match=rf"behind this code \({reached} < {HEAD}\); run `ticketflow migrate`"
        ):
            require_current_schema(empty)


def test_a_schema_that_is_ahead_is_neither_used_nor_touched(engine: Engine, url: URL) -> None:
    execute(engine, "UPDATE alembic_version SET version_num = '9999'")
    sentence = r"ahead of this code \(revision 9999 is unknown here\); upgrade ticketflow-orch"
    with pytest.raises(TicketflowError, match=sentence):
        require_current_schema(engine)
    with pytest.raises(TicketflowError, match=sentence):
        migrate(url)
    assert revision(engine) == "9999"


@pytest.mark.parametrize("secret", ["p%40ss%25word", "p%25s"])
def test_a_url_with_a_percent_sign_reaches_the_database(url: URL, secret: str) -> None:
    given = url.render_as_string(hide_password=False).replace("postgres@", f"postgres:{secret}@", 1)
    assert not migrate(given)


def test_a_revision_that_fails_leaves_nothing(empty: Engine, empty_url: URL) -> None:
    execute(empty, "CREATE TABLE job_firing (in_the_way text)")
    with pytest.raises(ProgrammingError, match='"job_firing" already exists'):
        migrate(empty_url)
    execute(empty, "DROP TABLE job_firing")
    assert migrate(empty_url)
    require_current_schema(empty)


def test_instants_that_no_calendar_has_are_moved_when_the_database_begins_to_refuse_them(
    empty: Engine, empty_url: URL
) -> None:
    migrate(empty_url, "0022")
    organization = add_organization(empty, joined_on=date(2020, 1, 1))
    execute(empty, "UPDATE organization SET joined_on = '-infinity', left_on = 'infinity'")
    evening = add_event(empty, organization)
    for value in ("-infinity", "infinity", "20000-01-01"):
        held = add_reservation(empty, evening, public_ref=value)
        execute(
            empty,
            f"UPDATE reservation SET created_at = '{value}', expires_at = '{value}', payment_started_at = '{value}' "
            f"WHERE id = {held}",
        )
    execute(empty, "UPDATE event SET starts_at = '20000-01-01', ends_at = 'infinity'")
    assert migrate(empty_url)
    with empty.connect() as connection:
        found = connection.execute(text("SELECT public_ref, expires_at FROM reservation ORDER BY id")).all()
        moved = connection.execute(text("SELECT starts_at, ends_at, joined_on, left_on FROM event, organization")).one()
    first, last = instant("0001-01-01T00:00"), instant("9999-12-30T00:00")
    assert [tuple(row) for row in found] == [("-infinity", first), ("infinity", last), ("20000-01-01", last)]
    assert moved.starts_at == last < moved.ends_at
    assert (moved.joined_on, moved.left_on) == (first.date(), last.date())


def test_a_value_that_somebody_keeps_from_being_moved_is_named_and_the_migration_goes_on_later(
    empty: Engine, empty_url: URL
) -> None:
    migrate(empty_url, "0022")
    held = add_reservation(empty, add_event(empty, add_organization(empty)))
    execute(empty, "UPDATE reservation SET expires_at = 'infinity'")
    refuse(empty, "reservation", "true", "holds are never changed")
    with pytest.raises(
        TicketflowError, match=rf"Row {held} of table reservation has a value .*holds are never changed"
    ):
        migrate(empty_url)
    execute(empty, "DROP TRIGGER refuse ON reservation")
    assert migrate(empty_url)


def test_a_second_migration_does_not_wait_for_ever(
    empty: Engine, empty_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Session(empty)
    try:
        stuck.run(f"SELECT pg_advisory_xact_lock({migrating._TURN})")
        limits = SessionLimits(statement_timeout=0, lock_timeout=0.2, idle_in_transaction_timeout=0)
        monkeypatch.setattr(migrating, "_LIMITS", limits)
        with pytest.raises(
            TicketflowError, match=r"Another `ticketflow migrate` has worked on this database for 0\.2 s"
        ):
            migrate(empty_url)
    finally:
        stuck.close()
