"""What is decided where a currency is replaced: whose, by which, from which month on, and at which fixed rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month

_RATE = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
_CODE = re.compile(r"[A-Z]{3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Whose:
    """Either the `organization` with this reference, or all whose currency is `currency` in the month before."""

    organization: str | None = None
    currency: str | None = None

    @classmethod
    def named(cls, organization: str | None, currency: str | None) -> Whose:
        """What a command names.

        Raises:
            InvalidInput: neither or both are named, or the currency is no code.
        """
        if (organization is None) == (currency is None):
            raise InvalidInput(
                "Name one organization, or all that have a currency: "
                "`ticketflow currency replace --all BGN --from-month 2026-01 --to EUR --rate 1.95583`."
            )
        return cls(organization, None if currency is None else code(currency))


@dataclass(frozen=True, slots=True)
class Terms:
    """`new` is the currency from `from_month` on; `rate`: how many of the old one are one of the new one."""

    from_month: Month
    new: str
    rate: Decimal

    @classmethod
    def parse(cls, from_month: str, new: str, rate: str) -> Terms:
        """The terms as people write them.

        Raises:
            InvalidInput: the month, the currency's code or the rate is none.
        """
        if not _RATE.fullmatch(rate) or not Decimal(rate):
            raise InvalidInput(
                f"{rate!r} is no rate; write how many of the old currency are one of the new one, above zero and with "
                "a point, such as 1.95583."
            )
        return cls(Month.parse(from_month), code(new), Decimal(rate))

    def fraction(self, old_exponent: int, new_exponent: int) -> tuple[int, int]:
        """Numerator and denominator, exactly, of what one minor unit of the old currency is in those of the new one."""
        numerator, denominator = self.rate.as_integer_ratio()
        return denominator * 10**new_exponent, numerator * 10**old_exponent


def code(given: str) -> str:
    """The code of a currency in capitals.

    Raises:
        InvalidInput: it is none.
    """
    if not _CODE.fullmatch(given.upper()):
        raise InvalidInput(f"{given!r} is no currency; write its code of three letters, such as EUR.")
    return given.upper()
