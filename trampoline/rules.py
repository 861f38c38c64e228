"""Rules of a kernel release for trampolines: data that one generator reads."""

from dataclasses import dataclass

from emu.kernel.text.entry import EntryLayout

_ENTRY = EntryLayout(endbr=True)


@dataclass(frozen=True, slots=True, eq=False)
class TrampolineRules:
    """One release's trampolines. ``KernelRelease`` sets the fields whose docstring says "from the release"."""

    saves_rbx_by_push: bool
    """rbx is pushed below the frame; since 6.5 it has a slot in the frame."""
    stack_args: bool
    """More than six argument slots are possible (473e3150e30a, 6.7)."""
    longest_nop: int
    """Bytes of the longest nop that fills an alignment (ASM_NOP_MAX)."""
    packs_images: bool
    """Images share pages (prog pack allocator); older kernels give each a page."""
    jmp_sites: bool
    """A site whose trampoline calls the original is patched with jmp (CONFIG_DYNAMIC_FTRACE_WITH_JMP)."""
    skip_nops: bool
    """A nop5 stands before every program; ``bpf_tramp_image.skips`` replaces ip_after_call and ip_epilogue."""
    max_links: int = 38
    """BPF_MAX_TRAMP_LINKS: programs on one function, all kinds together."""
    entry: EntryLayout = _ENTRY
    """From the release."""
    sign_extended_imm: bool = True
    """A constant that fits in a sign-extended imm32 takes the 7-byte ``mov r64, imm32``; older emitters take movabs.
    From the release.
    """
    sls: bool = True
    """int3 follows a plain ret. From the release."""
    fsession: bool = False
    """fsession programs exist. From the release."""
    union_args: bool = False
    """Unions by value are arguments like structs are. From the release."""

    @property
    def max_slots(self) -> int:
        """Argument slots at most: those in registers, or MAX_BPF_FUNC_ARGS."""
        return 12 if self.stack_args else 6
