"""What is text: to a terminal, a page and a database alike."""

from __future__ import annotations

import re

# From the beginning of a word only: in long words without an address each letter would be tried as one.
_ADDRESS = re.compile(r"""(?<![^\s<>"'(),;:])[^\s<>"'(),;:]+@[^\s<>"'(),;:]+""")


def is_text(value: str) -> bool:
    """Whether no bytes of another encoding stand in it, which neither a database nor a page can show."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_addresses(words: str) -> str:
    """`words` of somebody else, fit to be alerted and shown: mail addresses in them are left out."""
    return _ADDRESS.sub("…@…", words)
