"""Who a mail goes to: what counts as an address, the same for settings, envelopes, letters and the suppression list.

The local part by email-validator, the domain by IDNA 2008, in which ß and the joiners of Persian and Devanagari are
letters of their own; Python's own codec makes another domain of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# As RFC 5321 has it (4.5.3.1.3), with its angle brackets.
_LONGEST = 254
# A domain that says nothing about a local part, so that only that is judged.
_STAND_IN = "example.com"


@dataclass(frozen=True, slots=True)
class MailAddress:
    """An address, its domain in ASCII; `local_part` may hold letters beyond ASCII, which need SMTPUTF8 on the way."""

    local_part: str
    domain: str

    @property
    def needs_smtputf8(self) -> bool:
        """Whether only servers that know SMTPUTF8 can take it."""
        return not self.local_part.isascii()

    @property
    def key(self) -> str:
        """What is compared: nobody runs two mailboxes that differ in capitals only."""
        return f"{self.local_part.lower()}@{self.domain}"

    def __str__(self) -> str:
        return f"{self.local_part}@{self.domain}"


def mail_address(text: str | None) -> MailAddress | None:
    """`text` as the one address that it is; None when it is none. Nobody is asked whether it exists."""
    # What is slow to import is imported by the first address.
    from email_validator import EmailNotValidError, validate_email

    local, at, named = (text or "").strip().rpartition("@")
    domain = _domain(named) if at else None
    if domain is None:
        return None
    try:
        found = validate_email(f"{local}@{_STAND_IN}", check_deliverability=False, strict=True)
    except EmailNotValidError:
        return None
    address = MailAddress(found.local_part, domain)
    return address if len(str(address).encode()) <= _LONGEST else None


def _domain(named: str) -> str | None:
    import idna

    try:
        domain = idna.encode(named, uts46=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        return None
    # An address in brackets, or a bare one, is nobody's domain, nor is a name that ends in a dot.
    return None if re.fullmatch(r"(.*\.)?[0-9]+|.*\.", domain) else domain
