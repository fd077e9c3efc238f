"""The monthly settlement: what every organization's movements of a month come to, posted once to the cent.

Here: settling a month, what a settlement would post, what came late, and what is wrong among movements. What is owed at
the end of a month, and freezing it, is `closing`; what state a month is in, and its windows, is `periods`.
"""

from ticketflow_orch.settlement.passes import Drained, IncompleteSettlementError
from ticketflow_orch.settlement.settle import SettlementOptions, SettlementResult, settle_month

__all__ = ["Drained", "IncompleteSettlementError", "SettlementOptions", "SettlementResult", "settle_month"]
