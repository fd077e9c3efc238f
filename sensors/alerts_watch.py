"""Alerts that are over, and those that nobody has seen to for a day."""

import dagster as dg

from resources import ClockResource, DatabaseResource, OutboxResource
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.monitoring.passed_alerts import resolve_passed
from ticketflow_orch.outbox.alerts import repeat_alerts


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Ends alerts whose cause is gone, and repeats what has stood for another day.",
)
def alerts_watch(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource, outbox: OutboxResource
) -> dg.SkipReason:
    """Starts no run: what it finds goes to the outbox."""
    now = clock.now()
    with database.engine("alerts_watch") as engine, transaction(engine) as connection:
        ended = resolve_passed(connection, now, outbox.append)
        again = repeat_alerts(connection, now, outbox.append)
    for one in ended:
        context.log.info(f"{one.kind} {one.subject}: {one.resolved_by}.")
    over = "; ".join(f"{one.kind} {one.subject}" for one in ended)
    return dg.SkipReason(f"Over: {over or 'none'}. Repeated: {again}.")
