"""Schedule address: the text that names one schedule of one scenario, and that ``tramp replay`` takes."""

from dataclasses import dataclass
from urllib.parse import quote, unquote

from emu.schedule.action import BadSchedule


@dataclass(frozen=True, slots=True)
class ScheduleAddress:
    """``scenario/design/flavour/config/dropped/schedule``; ``dropped``: letters of actors that are left out, or -.

    ``design``: a name as NamedDesign has it. Reserved characters in a part are percent-encoded, as in a URL.
    """

    scenario: str
    design: str
    flavour: str
    config: str
    dropped: str = ""
    schedule: str = ""

    def __str__(self) -> str:
        design = quote(self.design, safe=":+")
        parts = (self.scenario, design, self.flavour, self.config, self.dropped or "-", self.schedule)
        return "/".join(parts)

    @classmethod
    def parse(cls, text: str) -> "ScheduleAddress":
        """Parse the text of an address. Raises BadSchedule."""
        parts = text.split("/")
        if len(parts) != 6 or not all(parts):
            raise BadSchedule(f"{text!r} is not scenario/design/flavour/config/dropped/schedule")
        scenario, design, flavour, config, dropped, schedule = parts
        return cls(scenario, unquote(design), flavour, config, "" if dropped == "-" else dropped, schedule)
