"""Figures measured on real kernel code, for comparison with generated code.

Kernel objects were built with gcc 12 -O2 and executed; the kernel's own generator made the trampolines of classic
designs. Each has one plain program (``xor eax, eax; ret``), which is not counted, nor is the traced function's body.
"""

from dataclasses import dataclass

from trampoline.designs import design_info


@dataclass(frozen=True, slots=True)
class Anchor:
    """T for one program on a function without arguments, its increase for each argument slot, and for each further
    program (None: not measured).
    """

    base: int
    per_arg: int
    further: int | None

    def instructions(self, nr_args: int, programs: int = 1) -> int | None:
        """T for some argument slots and programs; None if it was not measured."""
        if programs > 1 and self.further is None:
            return None
        return self.base + self.per_arg * nr_args + (self.further or 0) * (programs - 1)


CLASSIC = {
    "voluntary": {"fentry": Anchor(90, 2, 80), "fexit": Anchor(109, 2, 80), "fmodret": Anchor(111, 1, 83)},
    "lazy": {"fentry": Anchor(51, 2, 41), "fexit": Anchor(74, 2, None), "fmodret": Anchor(77, 1, None)},
}
"""Per-function trampolines, by configuration; lazy is the version merged in 7.3."""

TRACING_MULTI = {
    "tracing-multi-v2": {"fentry": Anchor(125, 2, 67), "fexit": Anchor(147, 2, 67), "fmodret": Anchor(141, 1, 71)},
    "tracing-multi-v1": {"fentry": Anchor(138, 0, 86), "fexit": Anchor(172, 0, 86), "fmodret": Anchor(162, 0, 89)},
}
"""Multi links of tracing-multi v2 and v1 as posted; voluntary, up to 6 argument slots."""
TRACING_MULTI_SLOTS = 6

LOWEST = {
    ("voluntary", "full"): {"fentry": Anchor(39, 2, 29), "fexit": Anchor(45, 1, None), "fmodret": Anchor(41, 1, None)},
    ("none", "full"): {"fentry": Anchor(27, 2, 17), "fexit": Anchor(33, 1, None), "fmodret": Anchor(29, 1, None)},
    ("none", "plain"): {"fentry": Anchor(15, 2, None), "fexit": Anchor(21, 1, None), "fmodret": Anchor(20, 1, None)},
}
"""Lower bounds for a stub per argument count that finds metadata in padding: with the semantics of the series and
migrate_disable, without it, and reduced to a single program that only reads its arguments.
"""


def anchor(
    name: str,
    *,
    design: str,
    config: str,
    nr_args: int = 1,
    program: str = "plain",
    metadata: str | None = None,
) -> Anchor | None:
    """The figure for a row of the bench; None if this design was not measured in this configuration."""
    kind, _, multi = name.partition("-")
    if design == "specialised":
        # For a hash there is only an estimate, and no figure for callers without lookup that save all registers.
        if metadata not in ((None, "padding") if program == "plain" else ("padding",)):
            return None
        return LOWEST.get((config, program), {}).get(kind)
    if multi and design_info(design).links == "multi":
        # The series was measured as posted.
        if config != "voluntary" or nr_args > TRACING_MULTI_SLOTS:
            return None
        return TRACING_MULTI.get(design, {}).get(kind)
    if design == "generic" or program != "plain":
        return None
    return CLASSIC.get(config, {}).get(kind)


@dataclass(frozen=True, slots=True)
class PublishedPath:
    """A line of the table published with the tracing-multi series: millions of calls a second."""

    name: str
    mps: float
    instructions: int | None = None
    """T in the configuration voluntary, of a path that cannot be run here."""


PUBLISHED = (
    PublishedPath("usermode-count", 746.907),
    PublishedPath("kernel-count", 313.423, 0),
    PublishedPath("syscall-count", 18.179),
    PublishedPath("fentry", 107.149),
    PublishedPath("fexit", 56.565),
    PublishedPath("fmodret", 59.495),
    PublishedPath("fentry-multi", 99.073),
    PublishedPath("fentry-multi-all", 97.920),
    PublishedPath("fexit-multi", 55.426),
    PublishedPath("fmodret-multi", 56.589),
    PublishedPath("rawtp", 166.774, 49),
    PublishedPath("tp", 61.947, 243),
    PublishedPath("kprobe", 43.719, 308),
    PublishedPath("kprobe-multi", 47.451, 185),
    PublishedPath("kretprobe", 18.358, 556),
    PublishedPath("kretprobe-multi", 24.523, 427),
)
"""Published with version 2 of the series. kernel-count calls a function that nothing is attached to."""
