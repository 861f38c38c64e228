"""How far from its baseline a path may be."""

import re
from dataclasses import dataclass
from fractions import Fraction

from trampoline.bpf.errors import TrampolineError

_LIMIT = re.compile(r"(\d+(?:\.\d+)?)%|(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limit:
    """How far from its baseline a path may be, longer or shorter: ``3`` instructions, or ``0.5%`` of its baseline."""

    text: str = "0"

    @classmethod
    def parse(cls, value: "int | str | Limit") -> "Limit":
        """Read a limit. TrampolineError for anything else."""
        text = value.text if isinstance(value, Limit) else str(value).replace(" ", "")
        if isinstance(value, bool) or _LIMIT.fullmatch(text) is None:
            raise TrampolineError(f"{value!r} is no limit: 3 (instructions) and 2% are")
        return cls(text)

    def allows(self, old: int, new: int) -> bool:
        """Whether ``new`` instructions are not farther from ``old`` than this."""
        return abs(new - old) <= self.of(old)

    def of(self, old: int) -> Fraction:
        """Instructions by which a path of ``old`` instructions may differ."""
        part = self.text.removesuffix("%")
        return Fraction(part) * old / 100 if part != self.text else Fraction(part)

    def __str__(self) -> str:
        return self.text


NO_DIFFERENCE = Limit()
"""Not one instruction."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far from its baseline a path may be: farther than ``soft`` is a warning, farther than ``hard`` a failure."""

    soft: Limit = NO_DIFFERENCE
    hard: Limit = NO_DIFFERENCE

    @classmethod
    def parse(cls, soft: int | str | Limit | None = None, hard: int | str | Limit | None = None) -> "Limits":
        """Both limits, 0 where one is not stated. TrampolineError for what is no limit, and for soft without hard:
        every difference fails then, so that none could warn.
        """
        limits = cls(Limit.parse(soft or 0), Limit.parse(hard or 0))
        if limits.soft != NO_DIFFERENCE and limits.hard == NO_DIFFERENCE:
            raise TrampolineError(f"soft={limits.soft} alone: without a hard limit every difference fails")
        return limits

    @property
    def is_stated(self) -> bool:
        """Whether any difference is allowed."""
        return self != Limits()

    def __str__(self) -> str:
        return f"soft {self.soft}, hard {self.hard}"
