"""A statement as a page that prints well: one HTML file that needs nothing else, in its reader's language and zone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

from babel import Locale
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ticketflow_orch.formatting.localization import amount, long_date, month_name, percentage, reader_locale
from ticketflow_orch.months import zone
from ticketflow_orch.statements.model import KindsOfMovements, Movement, Statement

# Enough to follow a statement of most organizations; the others have a file with all of their movements.
MOVEMENTS_SHOWN = 500


def movements_file(statement: Statement) -> str:
    """The name of the file beside the page that has all movements, where the page does not."""
    return f"{statement.currency}-movements.csv"


def page(
    statement: Statement,
    movements: Sequence[Movement],
    kinds: KindsOfMovements,
    *,
    default_locale: str,
) -> bytes:
    """The page of `statement` with the first of its `movements`, of which there are as many as `kinds` has counted.

    The same statement gives the same bytes.
    """
    locale = reader_locale(statement.party.locale, default_locale)
    rendered = _template().render(
        statement=statement,
        own=statement.own,
        adjustments=statement.adjustments,
        movements=movements,
        kinds=kinds,
        count=sum(kinds.counts.values()),
        movements_file=movements_file(statement),
        words=_words(locale.language),
        language=str(locale).replace("_", "-"),
        period=_period(statement, locale),
        amount=lambda minor_units: amount(minor_units, statement.exponent, locale),
        whole=lambda number: amount(number, 0, locale),
        percentage=lambda basis_points: percentage(basis_points, locale),
        month_name=lambda month: month_name(month, locale),
        caught_up=", ".join(month_name(month, locale) for month in statement.caught_up),
        local_time=_clock(statement.party.timezone),
    )
    return rendered.encode()


def _period(statement: Statement, locale: Locale) -> str:
    """The first and the last day that the statement covers, in the organization's zone."""
    place = zone(statement.party.timezone)
    first = statement.starts_at.astimezone(place).date()
    last = (statement.ends_at - timedelta(microseconds=1)).astimezone(place).date()
    sentence: str = _words(locale.language)["from_to"]
    return sentence.format(first=long_date(first, locale), last=long_date(last, locale))


def _clock(timezone: str) -> Any:  # noqa: ANN401 - a function for the template
    place = zone(timezone)

    def local_time(instant: datetime) -> str:
        return f"{instant.astimezone(place):%Y-%m-%d %H:%M:%S}"

    return local_time


@cache
def _words(language: str) -> Mapping[str, Any]:
    catalogue = resources.files("ticketflow_orch.statements").joinpath("words", f"{language}.toml")
    return tomllib.loads(catalogue.read_text("utf-8"))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("ticketflow_orch.statements"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("statement.html")
