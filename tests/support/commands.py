"""Commands in this process: what they print, and what they say against their input."""

from __future__ import annotations

from typer.testing import CliRunner

from ticketflow_orch import cli


def output(*arguments: str, given: str | None = None) -> str:
    """What a command prints that succeeds, with `given` on its standard input."""
    result = CliRunner().invoke(cli.app, arguments, input=given)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def lines(*arguments: str) -> list[str]:
    """The lines that a command prints that succeeds."""
    return output(*arguments).splitlines()


def refusal(*arguments: str) -> str:
    """What a command says against its input."""
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exception is not None, result.output
    return str(result.exception)
