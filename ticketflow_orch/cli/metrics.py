"""`ticketflow metrics`: the situation for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.errors import InputError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HOST = "127.0.0.1"


def metrics(
    textfile: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write this file for node_exporter, whole or not at all.")
    ] = None,
    serve: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help=f"Answer scrapes on {HOST} until Ctrl-C.")
    ] = None,
) -> None:
    """Print the metrics in Prometheus' format; or write them to a file, or serve them, read anew at each scrape."""
    from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile

    from ticketflow_orch.cli.session import database
    from ticketflow_orch.metrics import TicketFlowCollector
    from ticketflow_orch.settings import settings
    from ticketflow_orch.targets import ordinary_file

    if textfile is not None and serve is not None:
        raise InputError("Name --textfile or --serve, not both.")
    registry = CollectorRegistry()
    said = settings()
    with database("metrics", agreeing=False) as engine:
        registry.register(TicketFlowCollector(engine, said))
        if serve is not None:
            _serve(registry, serve)
        elif textfile is None:
            typer.echo(generate_latest(registry).decode("utf-8"), nl=False)
        else:
            try:
                write_to_textfile(str(ordinary_file(textfile)), registry)
            except OSError as error:
                raise InputError(f"{textfile} cannot be written ({error.strerror}); name a file elsewhere.") from None


def _serve(registry: CollectorRegistry, port: int) -> None:
    import signal
    import threading

    from prometheus_client import start_http_server

    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise InputError(f"Port {port} on {HOST} cannot be used ({error.strerror}); choose another.") from None
    typer.echo(f"Metrics are at http://{HOST}:{port}/metrics; Ctrl-C ends it.", err=True)
    ending.wait()
    server.shutdown()
    server.server_close()
    thread.join()
