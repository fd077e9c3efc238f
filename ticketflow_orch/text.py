"""What is text: to a terminal, a page and a database alike."""

from __future__ import annotations


def is_text(value: str) -> bool:
    """Whether no bytes of another encoding stand in it, which neither a database nor a page can show."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
