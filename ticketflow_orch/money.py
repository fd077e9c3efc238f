"""Amounts for people: minor units written out with their currency's decimals, exactly."""

from __future__ import annotations

from collections.abc import Iterable


def written_out(minor_units: int, exponent: int) -> str:
    """`minor_units` with `exponent` decimals and thousands separated by commas: (-123456, 2) is "-1,234.56"."""
    sign = "-" if minor_units < 0 else ""
    whole, fraction = divmod(abs(minor_units), 10**exponent)
    return f"{sign}{whole:,}" + (f".{fraction:0{exponent}d}" if exponent else "")


def bars(values: Iterable[int], width: int = 24) -> list[str]:
    """A bar of blocks for each value, scaled to the largest magnitude; negative values are drawn hollow."""
    numbers = list(values)
    largest = max((abs(number) for number in numbers), default=0) or 1
    return [("█" if number >= 0 else "░") * (abs(number) * width // largest) for number in numbers]
