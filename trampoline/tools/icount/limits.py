"""Allowed differences of paths from their baseline."""

import re
from dataclasses import dataclass
from fractions import Fraction

from trampoline.bpf.errors import TrampolineError

_LIMIT = re.compile(r"(\d+(?:\.\d+)?)%|(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limit:
    """Allowed difference of a path, in either direction: ``3`` instructions, or ``0.5%`` of its baseline."""

    text: str = "0"

    @classmethod
    def parse(cls, value: "int | str | Limit") -> "Limit":
        """Parse a limit. Raises TrampolineError for an invalid one."""
        text = value.text if isinstance(value, Limit) else str(value).replace(" ", "")
        if isinstance(value, bool) or _LIMIT.fullmatch(text) is None:
            raise TrampolineError(f"{value!r} is not a limit; pass 3 (instructions) or 2%")
        return cls(text)

    def allows(self, old: int, new: int) -> bool:
        """True if ``new`` instructions differ from ``old`` by no more than this."""
        return abs(new - old) <= self.of(old)

    def of(self, old: int) -> Fraction:
        """Instructions by which a path of ``old`` instructions may differ."""
        part = self.text.removesuffix("%")
        return Fraction(part) * old / 100 if part != self.text else Fraction(part)

    def __str__(self) -> str:
        return self.text


NO_DIFFERENCE = Limit()
"""The limit of 0 instructions."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a path: a difference beyond ``soft`` is a warning, beyond ``hard`` a failure."""

    soft: Limit = NO_DIFFERENCE
    hard: Limit = NO_DIFFERENCE

    @classmethod
    def parse(cls, soft: int | str | Limit | None = None, hard: int | str | Limit | None = None) -> "Limits":
        """Both limits, default 0. Raises TrampolineError for an invalid limit, and for soft without hard: every
        difference is a failure then, so that none could be a warning.
        """
        limits = cls(Limit.parse(soft or 0), Limit.parse(hard or 0))
        if limits.soft != NO_DIFFERENCE and limits.hard == NO_DIFFERENCE:
            raise TrampolineError(f"soft={limits.soft}: without a hard limit every difference is a failure")
        return limits

    @property
    def is_stated(self) -> bool:
        """True if any difference is allowed."""
        return self != Limits()

    def __str__(self) -> str:
        return f"soft {self.soft}, hard {self.hard}"
