"""Dagster's webserver for the names that are ours: `python -m ticketflow_orch.dagster_host.webserver`.

It takes the options of `dagster-webserver`. A page of somebody else's whose name is made to lead to this machine sends
that name as the host; answered, it could read and launch all that the UI can, on loopback too.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware

from ticketflow_orch.dagster_host.dagster_internals import webserver_cli
from ticketflow_orch.settings import read_settings

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def main() -> None:
    """Serve until a signal comes.

    Raises:
        InvalidInput: TICKETFLOW_ALLOWED_HOSTS names something that is no host.
    """
    hosts = [*LOOPBACK, *read_settings().allowed_host_names]
    webserver = webserver_cli()
    make: Callable[..., Starlette] = webserver.create_app_from_workspace_process_context

    def guarded(*arguments: object, **options: object) -> Starlette:
        app = make(*arguments, **options)
        # Added last, it is asked first.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        return app

    webserver.__dict__["create_app_from_workspace_process_context"] = guarded
    webserver.cli(auto_envvar_prefix="DAGSTER_WEBSERVER")


if __name__ == "__main__":
    main()
