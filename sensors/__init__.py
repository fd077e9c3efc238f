"""What happens on a condition."""

from sensors.duplicate_firings import duplicate_firings
from sensors.missed_windows import missed_windows
from sensors.stale_claims import stale_claims

SENSORS = [duplicate_firings, missed_windows, stale_claims]

__all__ = ["SENSORS", "duplicate_firings", "missed_windows", "stale_claims"]
