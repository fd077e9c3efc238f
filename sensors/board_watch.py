"""The board of months, shown anew when it says something else than what is shown."""

import dagster as dg

from assets.months_board import look, materialization, months_board, shown_version
from resources import ClockResource, DatabaseResource


@dg.sensor(
    target=months_board,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows the board of months anew whenever what it says has changed.",
)
def board_watch(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource
) -> dg.SensorResult | dg.SkipReason:
    """Starts no run, since a process would cost a hundred times what the board does: reports it by itself."""
    board = look(database, clock)
    # What is shown is the cursor: an asset that is wiped, or materialized by hand, is seen here too.
    if board.version == shown_version(context.instance):
        return dg.SkipReason("The board is as it was.")
    return dg.SensorResult(asset_events=[materialization(board)], skip_reason="The board has changed.")
