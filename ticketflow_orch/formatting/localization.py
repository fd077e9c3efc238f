"""How readers read: the language, numbers, dates and clock of the one who gets a statement or a mail.

What operators and analysts read is in English: `money`, `counts`, `ages` and `columns` are for them.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import cache, lru_cache

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_skeleton, format_time
from babel.numbers import format_decimal, format_percent

from ticketflow_orch.months import Month, zone

# The languages in which sentences are written down. English is the one that everybody falls back to.
LANGUAGES = ("en", "es")


@cache
def reader_locale(*wanted: str | None) -> Locale:
    """The first of the `wanted` locales ("es", "es-MX", "en_GB") that is known, in a language that we write.

    Where we do not write the language, it is English with the numbers and dates of the reader's country as far as
    English is known there, else of the world: figures of one language inside sentences of another are misread.
    """
    known = next(filter(None, map(_known, wanted)), Locale("en"))
    if known.language in LANGUAGES:
        return known
    return _known(f"en_{known.territory or '001'}") or Locale("en", "001")


@lru_cache(maxsize=20_000)
def amount(minor_units: int, exponent: int, locale: Locale) -> str:
    """`minor_units` with all `exponent` decimals, as `locale` writes numbers: (-123456, 2) is "-1.234,56" in German."""
    whole, _, _ = locale.decimal_formats[None].pattern.partition(".")
    return format_decimal(
        Decimal(minor_units).scaleb(-exponent), f"{whole}.{'0' * exponent}".removesuffix("."), locale=locale
    )


@cache
def percentage(basis_points: int, locale: Locale) -> str:
    """A rate with as many decimals as it has: 1250 is "12.5%", or "12,5 %" in Spanish."""
    pattern = locale.percent_formats[None].pattern.replace("##0", "##0.##")
    return format_percent(Decimal(basis_points).scaleb(-4), pattern, locale=locale)


@cache
def month_name(month: Month, locale: Locale) -> str:
    """The month in words: "March 2026"."""
    return str(format_skeleton("yMMMM", month.first_day, locale=locale))


def long_date(day: date, locale: Locale) -> str:
    """The day in words, without that of the week: "31 March 2026"."""
    return format_date(day, "long", locale=locale)


def date_and_time(instant: datetime, timezone: str, locale: Locale) -> tuple[str, str]:
    """The local day and time of an aware `instant`: "Tuesday, 2 June 2026" and "20:00 (Europe/Madrid, UTC+02:00)"."""
    local = instant.astimezone(zone(timezone))
    offset = f"{local:%z}"
    clock = f"{timezone}, UTC{offset[:3]}:{offset[3:]}"
    return format_date(local.date(), "full", locale=locale), f"{format_time(local, 'short', locale=locale)} ({clock})"


def _known(wanted: str | None) -> Locale | None:
    try:
        return Locale.parse((wanted or "").replace("-", "_"))
    except (ValueError, TypeError, UnknownLocaleError):
        return None
