"""`python -m ticketflow_orch`: the command `ticketflow`, wherever the environment lies."""

from __future__ import annotations

from ticketflow_orch.cli import main

main()
