"""What a run is given and cannot choose: no configuration of a run, in the launchpad or elsewhere, changes it."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from ticketflow_orch.dagster_host.dagster_internals import TreatAsResourceParam


class Given(TreatAsResourceParam):
    """A resource without configuration: Dagster's own would show every field of it in the launchpad, to be changed."""


def as_given(resources: Mapping[str, Any]) -> dict[str, dg.ResourceDefinition]:
    """`resources`, by key, as definitions that accept no configuration."""
    return {
        key: resource if isinstance(resource, dg.ResourceDefinition) else _definition(resource)
        for key, resource in resources.items()
    }


def _definition(resource: object) -> dg.ResourceDefinition:
    def itself(_: dg.InitResourceContext) -> object:
        return resource

    return dg.ResourceDefinition(itself, config_schema={}, description=type(resource).__doc__)
