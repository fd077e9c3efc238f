"""`ticketflow metrics`: the situation for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.exit_codes import FAILED
from ticketflow_orch.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ticketflow_orch.monitoring.snapshot import Situation
    from ticketflow_orch.settings import Settings

HOST = "127.0.0.1"


def metrics(
    textfile: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write this file for node_exporter, whole or not at all.")
    ] = None,
    serve: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help=f"Answer scrapes on {HOST} until Ctrl-C.")
    ] = None,
    address: Annotated[
        str,
        typer.Option(metavar="IP", help="With --serve: the address to listen on. Anyone who reaches it may read all."),
    ] = HOST,
) -> None:
    """Print the metrics in Prometheus' format; or write them to a file, or serve them, read anew at each scrape.

    Ends, or answers, within half a minute: where the database does not, `ticketflow_up` is 0.
    """
    from ticketflow_orch.settings import settings

    if textfile is not None and serve is not None:
        raise InvalidInput("Name --textfile or --serve, not both.")
    if serve is not None:
        _serve(settings(), serve, address)
    else:
        _write(settings(), textfile)


def _write(said: Settings, textfile: Path | None) -> None:
    from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile

    from ticketflow_orch.formatting.output_files import ordinary_file
    from ticketflow_orch.monitoring.deadlines import NoAnswerError, answer_within
    from ticketflow_orch.monitoring.metrics import LONGEST, Known, families, is_up

    target = None if textfile is None else ordinary_file(textfile)

    def write(known: Known) -> None:
        registry = CollectorRegistry()
        registry.register(known)
        try:
            if target is None:
                typer.echo(generate_latest(registry).decode("utf-8"), nl=False)
            else:
                write_to_textfile(str(target), registry)
        except OSError as error:
            raise InvalidInput(f"{textfile} cannot be written ({error.strerror}); name a file elsewhere.") from None

    try:
        situation = answer_within(LONGEST, lambda: _read(said))
    except NoAnswerError:
        write(Known([is_up(answers=False)]))
        typer.echo(f"error: The database did not answer within {LONGEST:.0f} s; `ticketflow health` asks on.", err=True)
        raise typer.Exit(FAILED) from None
    except Exception:
        # A file that stays as it was would go on saying that all is well.
        if target is not None:
            write(Known([is_up(answers=False)]))
        raise
    write(Known(list(families(situation))))


def _read(said: Settings) -> Situation:
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.monitoring.snapshot import read_situation

    with database("metrics", agreeing=False) as engine:
        return read_situation(engine, said)


def _serve(said: Settings, port: int, address: str) -> None:
    from prometheus_client import CollectorRegistry

    from ticketflow_orch.cli.session import database
    from ticketflow_orch.monitoring.metrics import TicketFlowCollector

    registry = CollectorRegistry()
    with database("metrics", agreeing=False) as engine:
        registry.register(TicketFlowCollector(engine, said))
        _answer_scrapes(registry, port, address)


def _answer_scrapes(registry: CollectorRegistry, port: int, address: str) -> None:
    import signal
    import threading

    from prometheus_client import start_http_server

    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise Unavailable(f"Port {port} on {address} cannot be used ({error.strerror}); choose another.") from None
    typer.echo(f"Metrics are at http://{address}:{port}/metrics; Ctrl-C ends it.", err=True)
    ending.wait()
    server.shutdown()
    server.server_close()
    thread.join()
