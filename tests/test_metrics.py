"""The situation in Prometheus' format, read back by its own parser."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine

from tests.rows import add_event, add_organization, add_reservation, instant
from tests.statements import execute
from ticketflow_orch.firings import Firing
from ticketflow_orch.metrics import TicketFlowCollector
from ticketflow_orch.scheduled_work import run_once
from ticketflow_orch.settings import Settings

SETTINGS = Settings(fixed_clock=instant("2026-06-02T00:00"))


def scrape(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Each sample's value by its name, without the prefix, and its labels' values in the order of their names."""
    exposed = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(exposed) for sample in family.samples]
    assert all(sample.name.startswith("ticketflow_") for sample in samples)
    return {
        (sample.name.removeprefix("ticketflow_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for sample in samples
    }


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


def test_what_a_registry_is_told_waits_for_no_database() -> None:
    unreachable = None
    CollectorRegistry().register(TicketFlowCollector(unreachable, SETTINGS))  # type: ignore[arg-type]


def test_every_metric_says_what_it_means(engine: Engine) -> None:
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len(families) == 19
    assert all(family.documentation.endswith(".") for family in families)


def test_a_figure_that_a_bad_row_hides_is_missing_and_counted_and_all_others_are_there(engine: Engine) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    add_reservation(engine, evening, expires_at=instant("2026-06-01T23:59"))
    execute(engine, "UPDATE reservation SET expires_at = '-infinity'")
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    seen = scrape(registry)
    assert seen["figures_missing",] == 1
    assert ("job_oldest_due_seconds", "expire_reservations") not in seen
    assert seen["months_unsettled",] == 0
    assert seen["months_unstated",] == 0
