"""What a scrape finds."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


def scrape(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Each sample's value by its name, without the prefix, and its labels' values in the order of their names."""
    exposed = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(exposed) for sample in family.samples]
    assert all(sample.name.startswith("ticketflow_") for sample in samples)
    return {
        (sample.name.removeprefix("ticketflow_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for sample in samples
    }
