"""The situation in Prometheus' format, read back by its own parser."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine

from tests.support.metrics import scrape
from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.jobs.firings import Firing
from ticketflow_orch.jobs.run_once import run_once
from ticketflow_orch.monitoring.deadlines import Asked
from ticketflow_orch.monitoring.metrics import TicketFlowCollector
from ticketflow_orch.monitoring.snapshot import Situation, read_situation
from ticketflow_orch.settings import Settings

SETTINGS = Settings(fixed_clock=instant("2026-06-02T00:00"))


def test_each_scrape_asks_the_database_anew(engine: Engine) -> None:
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    before = scrape(registry)
    assert before["job_oldest_due_seconds", "expire_reservations"] == 0
    assert before["outbox_oldest_due_seconds",] == 0

    evening = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    add_reservation(engine, evening, expires_at=instant("2026-06-01T23:59"))
    run_once(
        engine, Firing("close_events", SETTINGS.fixed_clock or instant("2026-06-02"), "run"), lambda: {"events": 4}
    )

    after = scrape(registry)
    assert after["job_oldest_due_seconds", "expire_reservations"] == 60
    assert after["job_last_success_timestamp_seconds", "close_events"] > 0
    assert [labels[2:] for labels in after if labels[0] == "job_firings_24h"] == [("close_events", "ACCEPTED")]


def test_where_the_database_is_away_the_one_metric_says_so(engine: Engine) -> None:
    registry = CollectorRegistry()
    nowhere = connect_engine(engine.url.set(database="nowhere"), "pytest")
    registry.register(TicketFlowCollector(nowhere, SETTINGS))
    assert scrape(registry) == {("up",): 0}
    nowhere.dispose()


def test_a_scrape_ends_in_time_and_the_next_one_waits_for_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = threading.Event()
    monkeypatch.setattr("ticketflow_orch.monitoring.metrics.read_situation", lambda *_: silence.wait(30))
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS, longest=0.1))
    for _ in range(2):
        assert scrape(registry) == {("up",): 0}
    silence.set()


def test_two_scrapes_at_once_have_one_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    waited = threading.Event()
    waiting = threading.Barrier(2, action=waited.set)
    until = Asked.until

    def once_both_wait(self: Asked[Situation], deadline: float) -> Iterator[Situation]:
        waiting.wait(30)
        return until(self, deadline)

    def slowly(*given: Any) -> Situation:
        asked.append(None)
        waited.wait(30)
        return read_situation(*given)

    monkeypatch.setattr("ticketflow_orch.monitoring.metrics.read_situation", slowly)
    monkeypatch.setattr(Asked, "until", once_both_wait)
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(scrape, registry)
        while not asked:
            time.sleep(0.01)
        other = threads.submit(scrape, registry)
        assert first.result() == other.result()
    assert first.result()["up",] == len(asked) == 1


def test_what_a_registry_is_told_waits_for_no_database() -> None:
    unreachable = None
    CollectorRegistry().register(TicketFlowCollector(unreachable, SETTINGS))  # type: ignore[arg-type]


def test_every_metric_says_what_it_means(engine: Engine) -> None:
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len(families) == 27
    assert all(family.documentation.endswith(".") for family in families)


def test_a_figure_that_a_bad_row_hides_is_missing_and_counted_and_all_others_are_there(engine: Engine) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    add_reservation(engine, evening, expires_at=instant("2026-06-01T23:59"))
    execute(engine, "ALTER TABLE reservation DROP CONSTRAINT reservation_instants_check")
    execute(engine, "UPDATE reservation SET expires_at = '-infinity'")
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    seen = scrape(registry)
    assert seen["figures_missing",] == 1
    assert ("job_oldest_due_seconds", "expire_reservations") not in seen
    assert seen["months_unsettled",] == 0
    assert seen["months_unstated",] == 0
