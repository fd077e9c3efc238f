"""The routes that the database has. Who delivers must have the same, or events go elsewhere and count as delivered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.installation import locked, read_installation, write
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.outbox.delivery.configuration import delivery_file, read_routes
from ticketflow_orch.settings import Settings


def agreeing(routes: str) -> Callable[[Connection], None]:
    """What asks, as often as it is called, whether the database has these routes; see `require_routes`."""
    return partial(require_routes, routes=routes)


def require_routes(connection: Connection, routes: str) -> None:
    """Refuse to deliver by other routes than the database has.

    Raises:
        InvalidInput: says what is different, and how to accept it.
    """
    differences = routes_changed(read_installation(connection).routes_digest, routes)
    if differences:
        raise InvalidInput(f"Nothing is delivered from here: {'; '.join(differences)}; {FIX}.")


FIX = "name the right file in TICKETFLOW_DELIVERY, or let the database have it: `ticketflow installation accept-routes`"


def routes_changed(before: str | None, after: str) -> tuple[str, ...]:
    """How routes differ, in words, one for each type of events; nothing where they do not."""
    was, becomes = _lines(before), _lines(after)
    return tuple(
        f"{kind} goes to {becomes.get(kind, _ELSE)}, and by the database to {was.get(kind, _ELSE)}"
        for kind in dict.fromkeys((*was, *becomes))
        if was.get(kind) != becomes.get(kind)
    )


def adopt_routes(engine: Engine, settings: Settings, by: str, *, unnamed: bool = True) -> bool:
    """Let the database have the routes of `settings`, unless it has some; returns whether it was done now.

    `unnamed`: also where no file says any, so that all goes into a file of this machine's.
    """
    if not unnamed and delivery_file(settings) is None:
        return False
    with engine.connect() as connection:
        if read_installation(connection).routes_digest is not None:
            return False
    routes = read_routes(settings)
    with transaction(engine) as connection:
        if locked(connection).routes_digest is not None:
            return False
        write(connection, "routes_digest", routes, by)
        return True


def accept_routes(engine: Engine, routes: str, by: str) -> tuple[str, ...]:
    """Let the database have these routes; returns how they differ from those that it had, in words."""
    with transaction(engine) as connection:
        differences = routes_changed(locked(connection).routes_digest, routes)
        if differences:
            write(connection, "routes_digest", routes, by)
    return differences


# What a type does for which only one of the two has a route.
_ELSE = "where all others go"


def _lines(routes: str | None) -> dict[str, str]:
    named = dict(line.split(": ", 1) for line in (routes or "").splitlines())
    return named or {"default": "nowhere"}
