"""How much longer than its baseline a path may get."""

import re
from dataclasses import dataclass
from fractions import Fraction

from trampoline.errors import TrampolineError

_LIMIT = re.compile(r"(\d+(?:\.\d+)?)%|(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limit:
    """Instructions more than the baseline, as a number or as a part of it: ``3``, ``2%``, ``0.5%``."""

    text: str = "0"

    @classmethod
    def parse(cls, value: "int | str | Limit") -> "Limit":
        """Read a limit. TrampolineError for anything else."""
        text = value.text if isinstance(value, Limit) else str(value).replace(" ", "")
        if isinstance(value, bool) or _LIMIT.fullmatch(text) is None:
            raise TrampolineError(f"{value!r} is no limit: 3 (instructions) and 2% are")
        return cls(text)

    def allows(self, old: int, new: int) -> bool:
        """Whether ``new`` instructions are not more than the limit lets them be."""
        return new - old <= self.of(old)

    def of(self, old: int) -> Fraction:
        """Instructions more that the limit allows of a path of ``old`` instructions."""
        part = self.text.removesuffix("%")
        return Fraction(part) * old / 100 if part != self.text else Fraction(part)

    def __str__(self) -> str:
        return self.text


NO_MORE = Limit()
"""Not one instruction."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``soft``: what is longer warns. ``hard``: what is longer fails."""

    soft: Limit = NO_MORE
    hard: Limit = NO_MORE

    @classmethod
    def parse(cls, soft: int | str | Limit | None = None, hard: int | str | Limit | None = None) -> "Limits":
        """Both limits, 0 where one is not stated. TrampolineError for what is no limit, and for soft without hard:
        what is longer at all fails then, so that nothing could warn.
        """
        limits = cls(Limit.parse(soft or 0), Limit.parse(hard or 0))
        if limits.soft != NO_MORE and limits.hard == NO_MORE:
            raise TrampolineError(f"soft={limits.soft} alone: without a hard limit every longer path fails")
        return limits

    @property
    def is_stated(self) -> bool:
        """Whether anything longer is allowed."""
        return self != Limits()

    def __str__(self) -> str:
        return f"soft {self.soft}, hard {self.hard}"
