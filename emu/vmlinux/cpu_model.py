"""CPUs that an unbooted kernel can be told to run on: what decides on alternatives and on mitigations.

Features are (word, bit) of arch/x86/include/asm/cpufeatures.h, vendors those of arch/x86/include/asm/processor.h.
With bugs the kernel's own ``cpu_select_mitigations()`` chooses retpolines, return thunks and the like, as far as its
configuration and its command line allow.
"""

from dataclasses import dataclass

__all__ = ["CPUS", "PLAIN", "CpuModel"]

_FEATURES = (
    (0, 0), (0, 4), (0, 5), (0, 8), (0, 15), (0, 23), (0, 24), (0, 25), (0, 26),
    (1, 11), (1, 20), (1, 27), (1, 29),
    (3, 16), (3, 18), (3, 20), (3, 21),
    (4, 0), (4, 13), (4, 23),
    (9, 0), (9, 3), (9, 7), (9, 8), (9, 9), (9, 20),
    (18, 4),
)  # fmt: skip
_INTEL, _AMD = 0, 2
_SPECTRE_V1, _SPECTRE_V2, _SSB, _SWAPGS, _RETBLEED, _SMT_RSB = 15, 16, 17, 21, 27, 29


@dataclass(frozen=True, slots=True)
class CpuModel:
    """Vendor, family and model as CPUID has them, features as (word, bit), bugs as numbers of ``X86_BUG``."""

    name: str
    features: tuple[tuple[int, int], ...] = _FEATURES
    bugs: tuple[int, ...] = ()
    vendor: int = _INTEL
    family: int = 6
    model: int = 0


PLAIN = CpuModel("plain")
"""A CPU without bugs: text is what ``mitigations=off`` gives."""
CPUS = {
    cpu.name: cpu
    for cpu in (
        PLAIN,
        # Zen 2: retpolines, untrained return thunk.
        CpuModel("zen2", _FEATURES, (_SPECTRE_V1, _SPECTRE_V2, _SSB, _RETBLEED, _SMT_RSB), _AMD, 0x17, 0x31),
        # Skylake: retpolines; with retbleed=stuff call depth tracking.
        CpuModel("skylake", _FEATURES, (_SPECTRE_V1, _SPECTRE_V2, _SSB, _SWAPGS, _RETBLEED), _INTEL, 6, 0x5E),
    )
}
