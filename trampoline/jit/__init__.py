"""The kernels' x86_64 eBPF JIT: the same bytes for the same input (arch/x86/net/bpf_jit_comp.c)."""

from trampoline.jit.compile import compile_func
from trampoline.jit.errors import JitError
from trampoline.jit.flavour import JIT_FLAVOURS, IndirectJump, JitBoot, JitFlavour
from trampoline.jit.image import ExtableEntry, JitImage, PokePlace, Reloc
from trampoline.jit.program import Arena, JitFunc, JitProgram, Poke

__all__ = [
    "JIT_FLAVOURS",
    "Arena",
    "ExtableEntry",
    "IndirectJump",
    "JitBoot",
    "JitError",
    "JitFlavour",
    "JitFunc",
    "JitImage",
    "JitProgram",
    "Poke",
    "PokePlace",
    "Reloc",
    "compile_func",
]
