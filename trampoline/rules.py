"""Kernel flavours: differences between releases as data of the generator.

Each value was read from images of its release; the golden files check it (docs/golden.md).
"""

from dataclasses import dataclass

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.function_lists import names


@dataclass(frozen=True, slots=True, eq=False)
class Flavour:
    """Trampoline rules of one release. A new release is a new value here and a golden file."""

    name: str
    entry: EntryLayout
    saves_rbx_by_push: bool
    """rbx is pushed below the frame; since 6.5 it is in a slot of the frame."""
    stack_args: bool
    """More than six argument slots are supported (473e3150e30a, 6.7)."""
    sign_extended_imm: bool
    """A constant that fits in a sign-extended imm32 is loaded by the 7-byte ``mov r64, imm32``; older emitters use
    movabs.
    """
    longest_nop: int
    """Size in bytes of the longest alignment nop (ASM_NOP_MAX)."""
    packs_images: bool
    """Images share pages (prog pack allocator); in older kernels each has its own page."""
    jmp_sites: bool
    """A site whose trampoline calls the original is patched with jmp (CONFIG_DYNAMIC_FTRACE_WITH_JMP)."""
    skip_nops: bool
    """A nop5 precedes every program; ``bpf_tramp_image.skips`` replaces ip_after_call and ip_epilogue."""
    fsession: bool
    """fsession programs exist."""
    sls: bool = True
    """int3 follows a plain ret (CONFIG_MITIGATION_SLS; on in the recorded kernels)."""
    max_links: int = 38
    """BPF_MAX_TRAMP_LINKS: maximum number of programs on one function, all kinds together."""
    union_args: bool = False
    """Unions by value are supported as arguments, like structs."""

    @property
    def btf_id_deny(self) -> frozenset[str]:
        """Functions that BPF refuses to trace."""
        return names("btf_id_deny", self.name).exact

    @property
    def noreturn_deny(self) -> frozenset[str]:
        """Functions that don't return, for which fexit and fmod_ret are refused."""
        return names("noreturn_deny", self.name).exact

    @property
    def max_slots(self) -> int:
        """Maximum number of argument slots: those in registers, or MAX_BPF_FUNC_ARGS."""
        return 12 if self.stack_args else 6


FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour(
            "6.1",
            EntryLayout(endbr=False),
            saves_rbx_by_push=True,
            stack_args=False,
            sign_extended_imm=False,
            longest_nop=8,
            packs_images=False,
            jmp_sites=False,
            skip_nops=False,
            fsession=False,
        ),
        Flavour(
            "6.12",
            EntryLayout(endbr=True, sealed=bytes.fromhex("660f1f00"), padding=16),
            saves_rbx_by_push=False,
            stack_args=True,
            sign_extended_imm=True,
            longest_nop=11,
            packs_images=True,
            jmp_sites=False,
            skip_nops=False,
            fsession=False,
        ),
        Flavour(
            "7.2",
            EntryLayout(endbr=True, sealed=bytes.fromhex("0f1f40d6"), padding=16),
            saves_rbx_by_push=False,
            stack_args=True,
            sign_extended_imm=True,
            longest_nop=11,
            packs_images=True,
            jmp_sites=True,
            skip_nops=True,
            fsession=True,
            max_links=36,
            union_args=True,
        ),
    )
}


def flavour(name: str) -> Flavour:
    """Flavour of a release, such as ``"6.12"``. TrampolineError lists the known ones."""
    try:
        return FLAVOURS[name]
    except KeyError:
        raise TrampolineError(f"no flavour {name!r}; there are {', '.join(FLAVOURS)}") from None
