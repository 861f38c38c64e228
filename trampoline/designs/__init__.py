"""The designs: ways for programs to get onto functions, each described by a ``DesignInfo``."""

from trampoline.bpf.errors import TrampolineError
from trampoline.designs.design import Design, DesignChoice, DesignInfo, Factory
from trampoline.designs.generic import GENERIC
from trampoline.designs.per_function import BATCHED, PER_FUNCTION
from trampoline.designs.specialised import SPECIALISED
from trampoline.designs.tracing_multi import TRACING_MULTI_V1, TRACING_MULTI_V2, TRACING_MULTI_V2_FIXED

__all__ = ["DESIGNS", "Design", "DesignChoice", "DesignInfo", "Factory", "design_info"]

DESIGNS: dict[str, DesignInfo] = {
    design.name: design
    for design in (
        PER_FUNCTION,
        BATCHED,
        GENERIC,
        SPECIALISED,
        TRACING_MULTI_V2,
        TRACING_MULTI_V2_FIXED,
        TRACING_MULTI_V1,
    )
}
"""Every design by its name."""


def design_info(design: DesignChoice) -> DesignInfo:
    """The design of a name, or one's own: a DesignInfo, or a factory, of which nothing more is known.

    TrampolineError for an unknown name.
    """
    if isinstance(design, DesignInfo):
        return design
    if not isinstance(design, str):
        return DesignInfo(getattr(design, "__qualname__", type(design).__qualname__), design)
    if design not in DESIGNS:
        raise TrampolineError(f"no design {design!r}; there are {', '.join(DESIGNS)}")
    return DESIGNS[design]
