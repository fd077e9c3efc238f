"""TicketFlow's database as a resource."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine

from resources.given import Given
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.db.installation import require_agreement
from ticketflow_orch.db.migrate import require_current_schema
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.local.databases import OURS
from ticketflow_orch.secret_variables import secret
from ticketflow_orch.settings import settings


@dataclass(frozen=True)
class DatabaseResource(Given):
    """Engines on TicketFlow's database, opened per piece of work, with the limits that its role is given.

    `url`: a Postgres URL; empty: what TICKETFLOW_DATABASE_URL says when an engine is opened.
    """

    url: str = field(default="", repr=False)
    limits: SessionLimits = field(default_factory=SessionLimits)

    @contextmanager
    def engine(self, application: str, connections: int = 5, patience: float = 0) -> Iterator[Engine]:
        """An engine for the work called `application` (job and window), closed when the block ends.

        `patience`: for how many seconds after a first failure what is `retried` on it is done again; its opening is.

        Raises:
            InvalidInput: the URL is missing or wrong.
            TicketflowError: the schema is behind or ahead of this code, or the settings of this process disagree with
                the database.
        """
        engine = connect_engine(
            self._address(), application, limits=self.limits, connections=connections, patience=patience
        )
        try:
            retried(engine, lambda: _require_fit(engine))
            yield engine
        finally:
            engine.dispose()

    def _address(self) -> str:
        url = self.url or secret(OURS, os.environ) or ""
        if not url:
            raise InvalidInput(f'{OURS} is not set here; set it, or eval "$(ticketflow env)".')
        return url


def _require_fit(engine: Engine) -> None:
    require_current_schema(engine)
    with engine.connect() as connection:
        require_agreement(connection, settings(), loaded=True)
