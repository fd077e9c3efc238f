"""The command `ticketflow`: a module per command, which reads what was typed, calls the business and prints the answer.

No rule of the business and no statement belongs here.
"""

from ticketflow_orch.cli.commands import app, command
from ticketflow_orch.cli.entry_point import main

__all__ = ["app", "command", "main"]
