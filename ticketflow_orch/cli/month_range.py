"""The months that a command line names: one, or all from --from to --to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.errors import InvalidInput

if TYPE_CHECKING:
    from ticketflow_orch.months import Month

OneMonth = Annotated[str | None, typer.Argument(metavar="[YYYY-MM]", help="The month.")]
FirstMonth = Annotated[str | None, typer.Option("--from", metavar="YYYY-MM", help="The first of several.")]
LastMonth = Annotated[str | None, typer.Option("--to", metavar="YYYY-MM", help="The last of several.")]


def named_months(command: str, month: str | None, first: str | None, last: str | None) -> list[Month]:
    """What `command` was asked for: `month`, or the months from `first` to `last`, both included.

    Raises:
        InvalidInput: neither is named, or both, or one is no month, or the last one comes before the first.
    """
    from ticketflow_orch.months import Month, months_between

    if (month is None) == (first is None or last is None) or (month is not None and (first or last)):
        raise InvalidInput(f"Name one month, or --from and --to; for example `ticketflow {command} 2026-03`.")
    months = list(months_between(Month.parse(str(month or first)), Month.parse(str(month or last))))
    if not months:
        raise InvalidInput(f"There is no month from {first} to {last}; turn the two around.")
    return months
