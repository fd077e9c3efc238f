"""What the migrations build, as `ticketflow_orch/db` keeps it: `python -m tests.support.schema` writes it anew.

`catalogue.json` is for the doctor, `schema.sql` for people: the whole database on one page, triggers included.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy.engine import URL

from ticketflow_orch.db.catalogue import FILE, Catalogue, found
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.db.roles import grants
from ticketflow_orch.local import postgres_places
from ticketflow_orch.local.postgres import EmbeddedServer

ROOT = Path(__file__).parents[2]
DATABASE = ROOT / "ticketflow_orch" / "db"
PAGE = DATABASE / "schema.sql"
# What pg_dump says about itself and its session.
_NOISE = re.compile(
    r"^(?:--(?: (?:Name|Dumped|PostgreSQL database dump).*)?|SET .*|SELECT pg_catalog\..*|\\.*)\n", re.MULTILINE
)


def built(server: EmbeddedServer) -> Catalogue:
    """The catalogue of a database that was just migrated, with the role of runs."""
    url = server.url()
    migrate(url)
    engine = connect_engine(url, "catalogue", connections=1)
    with engine.begin() as connection:
        connection.exec_driver_sql(grants())
        catalogue = found(connection)
    engine.dispose()
    return catalogue


def as_text(catalogue: Catalogue) -> str:
    """The content of `catalogue.json`."""
    return json.dumps({"objects": catalogue.objects, "grants": catalogue.grants}, indent=1) + "\n"


def page(url: URL) -> str:
    """The schema of a database on a server of our own, as SQL that makes it."""
    command = [
        postgres_places.programs() / "pg_dump", "--schema-only", "--no-owner", "--no-privileges",
        "--exclude-table=alembic_version", url.render_as_string(hide_password=False),
    ]  # fmt: skip
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.sub(r"\n{3,}", "\n\n", _NOISE.sub("", dump)).strip() + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tf-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedServer(Path(folder) / "server")
        server.start()
        try:
            (DATABASE / FILE).write_text(as_text(built(server)), "utf-8")
            PAGE.write_text(page(server.url()), "utf-8")
        finally:
            server.remove()
