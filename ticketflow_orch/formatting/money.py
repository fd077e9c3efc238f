"""Amounts for people: minor units written out with their currency's decimals, exactly."""

from __future__ import annotations


def written_out(minor_units: int, exponent: int) -> str:
    """`minor_units` with `exponent` decimals and thousands separated by commas: (-123456, 2) is "-1,234.56"."""
    sign = "-" if minor_units < 0 else ""
    whole, fraction = divmod(abs(minor_units), 10**exponent)
    return f"{sign}{whole:,}" + (f".{fraction:0{exponent}d}" if exponent else "")
