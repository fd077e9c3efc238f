"""Write `ticketflow_orch/db/catalogue.json` from what the migrations build: `python -m tests.support.catalogue`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ticketflow_orch.db.catalogue import FILE, Catalogue, as_text, found
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.local.postgres import EmbeddedServer

ROOT = Path(__file__).parents[2]
ROLES = ROOT / "deploy" / "roles.sql"


def built(server: EmbeddedServer) -> Catalogue:
    """The catalogue of a database that was just migrated, with the role of runs."""
    url = server.url()
    migrate(url)
    engine = connect_engine(url, "catalogue", connections=1)
    with engine.begin() as connection:
        connection.exec_driver_sql(ROLES.read_text("utf-8"))
        catalogue = found(connection)
    engine.dispose()
    return catalogue


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tf-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedServer(Path(folder) / "server")
        server.start()
        try:
            (ROOT / "ticketflow_orch" / "db" / FILE).write_text(as_text(built(server)), "utf-8")
        finally:
            server.remove()
