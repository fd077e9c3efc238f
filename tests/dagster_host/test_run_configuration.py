"""What a run is given is no configuration of it: neither business time nor the database can be chosen for a run."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from dagster._config import ConfigType
from dagster._core.execution.validate_run_config import validate_run_config

from ticketflow_orch.definitions import build_definitions

OURS = ("clock", "database", "delivery", "outbox")


@pytest.fixture(scope="module")
def jobs() -> list[dg.JobDefinition]:
    return [job for job in build_definitions().resolve_all_job_defs() if isinstance(job, dg.JobDefinition)]


def options(kind: ConfigType) -> dict[str, Any]:
    return dict(getattr(kind, "fields", {}))


def test_no_resource_of_ours_has_an_option_in_the_launchpad(jobs: list[dg.JobDefinition]) -> None:
    for job in jobs:
        resources = options(job.run_config_schema.run_config_schema_type)["resources"]
        for name, section in options(resources.config_type).items():
            if name in OURS:
                assert options(options(section.config_type)["config"].config_type) == {}, (job.name, name)


@pytest.mark.parametrize(
    ("resource", "option"), [("clock", "fixed_at"), ("database", "url"), ("database", "statement_timeout")]
)
def test_a_run_that_would_choose_them_is_refused(jobs: list[dg.JobDefinition], resource: str, option: str) -> None:
    [job] = [job for job in jobs if job.name == "monthly_settlement_job"]
    chosen = {"resources": {resource: {"config": {option: "2030-01-01T00:00:00Z"}}}}
    with pytest.raises(dg.DagsterInvalidConfigError, match=f'unexpected config entry "{option}"'):
        validate_run_config(job, chosen)
