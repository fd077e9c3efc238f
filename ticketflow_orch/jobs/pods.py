"""What a job's pod is given where runs are pods, as tags of Dagster: elsewhere nobody reads them.

Runs that are launched from an asset, as those of backfills are, get what the code location's deployment gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KUBERNETES_TAG = "dagster-k8s/config"


def _pod(cpu: str, memory: str, grace: int) -> Mapping[str, Any]:
    return {
        KUBERNETES_TAG: {
            "container_config": {
                "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
            },
            # Seconds for the chunk, or the batch, that a run is in.
            "pod_spec_config": {"termination_grace_period_seconds": grace},
        }
    }


# A job that sends statements to the database and waits.
SMALL_POD = _pod("100m", "512Mi", 30)
# One with workers of its own.
SETTLING_POD = _pod("1", "1Gi", 120)
