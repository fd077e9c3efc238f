"""Windows that were started more than once: without effect, and yet somebody should learn that two daemons run."""

import dagster as dg

from resources import ClockResource, DatabaseResource, OutboxResource
from sensors.alerting import alert
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.jobs.firings import duplicate_windows


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Alerts once per window of those that were scheduled twice or delivered again.",
)
def duplicate_firings(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource, outbox: OutboxResource
) -> dg.SkipReason:
    """Starts no run: what it finds goes to the outbox."""
    with database.engine("duplicate_firings") as engine, transaction(engine) as connection:
        alerts = [window.alert for window in duplicate_windows(connection)]
        return alert(context, connection, alerts, clock.now(), outbox.append)
