"""The outbox as people see it: a table that others fill and the relay empties, observed every few minutes."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from resources import DatabaseResource
from ticketflow_orch.outbox.backlog import Backlog, faults, read_backlog
from ticketflow_orch.settings import settings

outbox = dg.AssetSpec(
    "outbox",
    description="What the outside world is to learn, written in the transaction of its cause. The relay delivers it; "
    "its observations show over time what waits, for how long, and what only a person can get on its way.",
    group_name="delivery",
    owners=["team:operations"],
    kinds={"postgres"},
    tags={"domain": "delivery"},
    metadata={"dagster/table_name": "outbox_event"},
)


@dg.asset_check(
    asset=outbox.key,
    description="Nothing has been due for longer than TICKETFLOW_OUTBOX_LATE, nothing is dead or in doubt.",
)
def outbox_is_delivered(database: DatabaseResource) -> dg.AssetCheckResult:
    """Judged by the sensor every few minutes; here by hand."""
    with database.engine("check outbox_is_delivered") as engine, engine.connect() as connection:
        return judged(read_backlog(connection))


def judged(backlog: Backlog) -> dg.AssetCheckResult:
    """What the check says of `backlog`, naming each thing that is wrong."""
    found = faults(backlog, settings().outbox_late)
    return dg.AssetCheckResult(
        passed=not found,
        asset_key=outbox.key,
        check_name="outbox_is_delivered",
        severity=dg.AssetCheckSeverity.WARN,
        description=" ".join(found) or "All is on its way.",
        metadata=figures(backlog),
    )


def figures(backlog: Backlog) -> Mapping[str, dg.MetadataValue[Any]]:
    """Numbers that the UI plots over time."""
    return {
        "waiting": dg.MetadataValue.int(backlog.waiting),
        "oldest due (seconds)": dg.MetadataValue.float(round(backlog.oldest_age, 1)),
        "dead": dg.MetadataValue.int(backlog.dead),
        "in doubt": dg.MetadataValue.int(backlog.in_doubt),
        "held": dg.MetadataValue.int(backlog.held),
    }
