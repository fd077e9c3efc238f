"""How the outbox is doing, shown over time in the catalog and judged by its check."""

import dagster as dg

from assets.outbox import figures, judged, outbox
from resources import DatabaseResource
from ticketflow_orch.outbox.backlog import read_backlog


@dg.sensor(
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Observes the outbox: what waits, for how long, what is dead, in doubt or held.",
)
def outbox_watch(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
    """Starts no run: Dagster stores the observation and the check's result by itself."""
    with database.engine("outbox_watch") as engine, engine.connect() as connection:
        backlog = read_backlog(connection)
    result = judged(backlog)
    if not result.passed:
        context.log.warning(result.description or "")
    evaluation = dg.AssetCheckEvaluation(
        asset_key=outbox.key,
        check_name=str(result.check_name),
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
    )
    return dg.SensorResult(
        skip_reason=result.description,
        asset_events=[dg.AssetObservation(outbox.key, metadata=figures(backlog)), evaluation],
    )
