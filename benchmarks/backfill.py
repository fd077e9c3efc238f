"""What a backfill of twelve months costs beyond the settlements themselves, through the real queue and daemon."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.end_to_end import sales
from tests.end_to_end.back_office import opened
from ticketflow_orch.local.postgres import EmbeddedServer

MONTHS = [f"2024-{number:02d}" for number in range(1, 13)]


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="tf-"))
    home.chmod(0o755)  # Postgres runs as another account when we are root
    try:
        with opened(home, TICKETFLOW_FIRST_MONTH=sales.FIRST_MONTH, TICKETFLOW_FIXED_CLOCK=sales.NOW) as office:
            sales.sell(office.engine)
            print(f"{len(MONTHS)} months: {office.cost(office.backfill(MONTHS))}")
    finally:
        EmbeddedServer(home).remove()
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
