"""Where root's servers have their data, and the account that they run as."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run_sql
from tests.local.small_clusters import SMALL, only_root
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import postgres_places
from ticketflow_orch.local.postgres import EmbeddedServer


@pytest.fixture
def private(scratch: Path) -> Iterator[Path]:
    """A folder that others cannot enter."""
    folder = scratch / f"private-{uuid.uuid4().hex[:6]}"
    folder.mkdir(mode=0o700)
    yield folder
    for home in folder.iterdir():
        EmbeddedServer(home).remove()
    shutil.rmtree(folder)


@only_root
def test_a_home_that_is_moved_keeps_its_data_and_a_copy_of_it_gets_none_of_it(private: Path) -> None:
    first = EmbeddedServer(private / "first", parameters=SMALL)
    first.start()
    run_sql(first.url(), "CREATE DATABASE kept")
    first.stop()

    moved = EmbeddedServer((private / "first").rename(private / "second"), parameters=SMALL)
    moved.start()
    run_sql(moved.url("kept"), "SELECT 1")
    shutil.copytree(private / "second", private / "copy", symlinks=True)
    with pytest.raises(TicketflowError, match=rf"is that of {private / 'second'}; set TICKETFLOW_HOME"):
        EmbeddedServer(private / "copy", parameters=SMALL)._initialize()
    moved.stop()
    (private / "copy" / "postgres").unlink()


@only_root
def test_data_that_is_gone_is_not_silently_begun_anew(private: Path) -> None:
    server = EmbeddedServer(private / "home", parameters=SMALL)
    server.start()
    server.stop()
    away = server.data.rename(server.data.with_name(f"{server.data.name}.away"))

    with pytest.raises(TicketflowError, match=rf"was in {server.data} and is gone; bring it back"):
        EmbeddedServer(private / "home", parameters=SMALL).start()
    away.rename(server.data)
    assert server.start()


@only_root
def test_data_stays_where_it_is_when_its_folder_is_closed_and_that_is_said(private: Path) -> None:
    private.chmod(0o755)
    server = EmbeddedServer(private / "home", parameters=SMALL)
    server.start()
    server.stop()
    private.chmod(0o700)

    closed = EmbeddedServer(private / "home", parameters=SMALL)
    assert closed.data == server.data
    with pytest.raises(TicketflowError, match=rf"let others enter again with `chmod o\+x {private}`"):
        closed.start()


@only_root
def test_a_home_that_a_strict_umask_will_close_has_its_data_elsewhere_from_the_start(scratch: Path) -> None:
    before = os.umask(0o077)
    server = EmbeddedServer(scratch / f"strict-{uuid.uuid4().hex[:6]}", parameters=SMALL)
    try:
        server.start()
        assert server.data == EmbeddedServer(server.directory).data
        assert server.data.parent == postgres_places.SHARED
        run_sql(server.url(), "SELECT 1")
    finally:
        os.umask(before)
        server.remove()


@only_root
@pytest.mark.parametrize("said", ["there is no useradd here", "useradd: Permission denied."])
def test_an_account_that_cannot_be_made_is_a_sentence(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(postgres_places, "ACCOUNT", "nobody-has-this-name")
    monkeypatch.setattr(postgres_places, "_add_account", lambda: said)

    with pytest.raises(
        TicketflowError, match=rf"could not be made for it \({said}\); create it with `useradd --system"
    ):
        postgres_places.account()
