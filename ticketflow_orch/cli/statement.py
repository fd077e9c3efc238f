"""`ticketflow statement`: the statements of one organization's closed month, written and found."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.exit_codes import FAILED


def statement(
    organization: Annotated[str, typer.Argument(help="The organization's external reference.")],
    month: Annotated[str, typer.Argument(metavar="YYYY-MM")],
    currency: Annotated[str | None, typer.Option(metavar="EUR", help="Only the statement in this currency.")] = None,
) -> None:
    """Write an organization's statements of a closed month, and print where they are.

    The same bytes as those that the month's run has written, or will write. Exit code 1 when one cannot be made.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.months import Month
    from ticketflow_orch.settings import settings
    from ticketflow_orch.statements import StatementOptions, StatementsLeftOutError, write_statement

    wanted = Month.parse(month)
    options = StatementOptions.configured(settings())
    with database("statement") as engine:
        try:
            addresses = write_statement(engine, organization, wanted, options, currency)
        except StatementsLeftOutError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(FAILED) from None
    for address in addresses:
        typer.echo(address)
