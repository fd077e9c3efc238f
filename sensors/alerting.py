"""What the sensors that watch have in common: an alert goes to the outbox once, and to the log of the evaluation."""

from collections.abc import Iterable
from datetime import datetime

import dagster as dg
from sqlalchemy import Connection

from ticketflow_orch.outbox.alerts import Alert, alert_all
from ticketflow_orch.outbox.events import Publish


def alert(
    context: dg.SensorEvaluationContext,
    connection: Connection,
    alerts: Iterable[Alert],
    now: datetime,
    publish: Publish,
) -> dg.SkipReason:
    """Publish those of `alerts` that are new, in the caller's transaction, and say which they were."""
    new = alert_all(connection, list(alerts), now, publish)
    for one in new:
        context.log.warning(f"{one.kind}: {one.key}")
    return dg.SkipReason("Alerted: " + "; ".join(f"{one.kind} {one.key}" for one in new) if new else "All well.")
