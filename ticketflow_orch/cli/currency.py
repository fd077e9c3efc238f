"""`ticketflow currency`: what people decide where a currency is replaced by another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.exit_codes import DONE, FAILED
from ticketflow_orch.cli.options import By
from ticketflow_orch.local.account import account

if TYPE_CHECKING:
    from ticketflow_orch.closing.currency_replacement import Replaced

app = typer.Typer(help="Currencies: what to do where one is replaced by another.", no_args_is_help=True)


@app.command("replace")
def replace(
    from_month: Annotated[
        str, typer.Option("--from-month", metavar="YYYY-MM", help="The first month in the new currency.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="CODE", help="The new currency.")],
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="How many of the old currency are one of the new one, such as 1.95583.")
    ],
    organization: Annotated[
        str | None, typer.Argument(metavar="[REF]", help="One organization, by its external reference.")
    ] = None,
    *,
    every: Annotated[
        str | None, typer.Option("--all", metavar="CODE", help="All organizations that have this currency.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only what would be done is shown.")] = False,
    by: By = None,
) -> None:
    """Give organizations another currency from a month on, and convert what they are still owed in the old one.

    What closed books carry is taken out in the old currency and put in in the new one by two MANUAL movements in the
    first month that is not closed. Repeat it for what comes later in the old currency; what is done is not done twice.
    With the old currency as the new one, a decision is taken back.
    Exit code 1 when some of several organizations are left out.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.closing.currency_replacement import preview_replacement, replace_currency
    from ticketflow_orch.closing.currency_terms import Terms, Whose

    whose, terms = Whose.named(organization, every), Terms.parse(from_month, to, rate)
    with database("currency") as engine:
        if yes:
            replaced = replace_currency(engine, whose, terms, by or account())
        else:
            replaced = preview_replacement(engine, whose, terms)
    _show(replaced)
    if not yes and not replaced.changes_nothing:
        typer.echo("Nothing is written yet; the same command with --yes does it.")
    raise typer.Exit(FAILED if replaced.left_out else DONE)


def _show(replaced: Replaced) -> None:
    from ticketflow_orch.cli.terminal import plain_table
    from ticketflow_orch.formatting.counts import counted
    from ticketflow_orch.formatting.money import written_out

    terms, old, new = replaced.terms, replaced.old, replaced.terms.new

    def before(amount: int) -> str:
        return written_out(amount, replaced.old_exponent)

    def after(amount: int) -> str:
        return written_out(amount, replaced.new_exponent)

    if replaced.decided:
        whose = counted(replaced.decided, "organization")
        instead = "again" if new == old else f"instead of {old}"
        typer.echo(f"From {terms.from_month} on {new} is the currency of {whose} {instead}.")
    if replaced.converted:
        typer.echo(
            f"In {replaced.dated}, at 1 {new} = {terms.rate.normalize():f} {old}: {before(replaced.before)} {old} of "
            f"{counted(replaced.converted, 'organization')} become {after(replaced.after)} {new}."
        )
        plain_table(
            ("organization", old, new),
            [(one.organization, before(one.before), after(one.after)) for one in replaced.shown],
        )
        _say_more(replaced.converted - len(replaced.shown))
    if replaced.already:
        typer.echo(
            f"{counted(replaced.already, 'organization')} converted before. What is left is converted by the same "
            "command when closed books have taken that in."
        )
    if replaced.why_not_yet and new != old:
        typer.echo(f"Nothing is converted yet, because {replaced.why_not_yet}.")
    elif replaced.changes_nothing and not replaced.left_out:
        typer.echo(f"There is nothing to do: the currency is {new}, and closed books carry nothing else in {old}.")
    for name, why in replaced.left_out:
        typer.echo(f"{name} is left out: {why}.")
    _say_more(replaced.left_out_count - len(replaced.left_out))


def _say_more(count: int) -> None:
    from ticketflow_orch.formatting.counts import counted

    if count:
        typer.echo(f"and {counted(count, 'more organization')}")
