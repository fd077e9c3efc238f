"""What a run is given and cannot choose: no configuration of a run, in the launchpad or elsewhere, changes it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import dagster as dg
from dagster._core.definitions.resource_annotation import TreatAsResourceParam


class Given(TreatAsResourceParam):
    """A resource without configuration: Dagster's own would show every field of it in the launchpad, to be changed."""


def as_given(resources: Mapping[str, Any]) -> dict[str, dg.ResourceDefinition]:
    """`resources`, by key, as definitions that accept no configuration."""
    return {
        key: resource
        if isinstance(resource, dg.ResourceDefinition)
        else dg.ResourceDefinition(partial(_itself, resource), config_schema={}, description=type(resource).__doc__)
        for key, resource in resources.items()
    }


def _itself(resource: object, _: dg.InitResourceContext) -> object:
    return resource
