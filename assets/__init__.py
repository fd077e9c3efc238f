"""What the platform knows: the monthly settlement and the checks that judge it."""

from assets.monthly_settlement import monthly_settlement
from assets.settlement_checks import SETTLEMENT_CHECKS

__all__ = ["SETTLEMENT_CHECKS", "monthly_settlement"]
