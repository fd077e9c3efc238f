"""The inventory that people read is the one that runs."""

from __future__ import annotations

from docs.inventory import FILE, inventory


def test_the_inventory_is_what_the_definitions_say() -> None:
    assert FILE.read_text("utf-8") == inventory(), "run `python -m docs.inventory`"
