"""What happens on a condition: the relay when an event is due, further runs of a large month, alerts, shown figures.

They only translate, as schedules do. None but the first two start a run: what others find goes to the outbox or the
catalog.
"""

from sensors.alerts_watch import alerts_watch
from sensors.board_watch import board_watch
from sensors.duplicate_firings import duplicate_firings
from sensors.failed_checks import failed_checks
from sensors.failed_runs import failed_runs
from sensors.missed_windows import missed_windows
from sensors.outbox_relay import outbox_relay, redrive_outbox_job, relay_outbox_job
from sensors.outbox_watch import outbox_watch
from sensors.settlement_shards import settlement_shard_job, settlement_shards
from sensors.stale_claims import stale_claims

SENSORS = [
    alerts_watch,
    board_watch,
    duplicate_firings,
    failed_checks,
    failed_runs,
    missed_windows,
    outbox_relay,
    outbox_watch,
    settlement_shards,
    stale_claims,
]

__all__ = [
    "SENSORS",
    "alerts_watch",
    "board_watch",
    "duplicate_firings",
    "failed_checks",
    "failed_runs",
    "missed_windows",
    "outbox_relay",
    "outbox_watch",
    "redrive_outbox_job",
    "relay_outbox_job",
    "settlement_shard_job",
    "settlement_shards",
    "stale_claims",
]
