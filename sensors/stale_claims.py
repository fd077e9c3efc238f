"""Claims whose holder has died: failed, so that a holder that comes back cannot finish one, and reported once."""

import dagster as dg

from resources import ClockResource, DatabaseResource, OutboxResource
from sensors.alerting import alert
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.jobs.claims import sweep


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Fails claims whose lease has run out and alerts of each once.",
)
def stale_claims(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource, outbox: OutboxResource
) -> dg.SkipReason:
    """Starts no run: what it finds goes to the outbox, in the transaction that fails the claim."""
    with database.engine("stale_claims") as engine, transaction(engine) as connection:
        alerts = [claim.alert for claim in sweep(connection)]
        return alert(context, connection, alerts, clock.now(), outbox.append)
