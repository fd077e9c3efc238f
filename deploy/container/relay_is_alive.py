"""The health check of a resident relay: whether the one at this address has asked its database anything lately.

A relay asks twice a second whether its routes still hold. One that hangs or is stopped keeps its sessions and asks
nothing. Exits 0 where it lives, else 1.
"""

from __future__ import annotations

import sys

from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.databases import resolve
from ticketflow_orch.outbox.relay import RESIDENT
from ticketflow_orch.settings import settings

_LONGEST_SILENCE = 20
_SILENCE = """
    SELECT extract(epoch FROM clock_timestamp() - max(query_start))::float8 FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE %(name)s
        AND client_addr IS NOT DISTINCT FROM inet_client_addr()
"""


def main() -> int:
    """Returns the exit code."""
    engine = connect_engine(resolve(settings()).ticketflow, "relay health", connections=1)
    with engine.connect() as connection:
        silence = connection.exec_driver_sql(_SILENCE, {"name": f"%{RESIDENT}%"}).scalar_one()
    if silence is None:
        sys.stderr.write("No relay at this address is connected to the database.\n")
        return 1
    sys.stderr.write(f"The relay last asked its database {silence:.0f} s ago.\n")
    return int(silence > _LONGEST_SILENCE)


if __name__ == "__main__":
    sys.exit(main())
