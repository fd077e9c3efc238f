"""Counts as people read them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`number` of them, such as "1 event" or "2,000 events"; `noun` is one that takes a plain s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
