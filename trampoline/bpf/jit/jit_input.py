"""Input of the JIT: a function after verification and rewriting."""

from collections.abc import Iterator
from dataclasses import dataclass

from trampoline.bpf.isa.insn import Insn


@dataclass(frozen=True, slots=True)
class JitArena:
    """An arena's addresses: start of its low 4 GiB window in the kernel, and in the process that maps it."""

    kern_vm_start: int
    user_vm_start: int = 0


@dataclass(frozen=True, slots=True)
class Poke:
    """A tail call with a known map and key (``struct bpf_jit_poke_descriptor``).

    ``target``: machine code of the program in that slot, None if empty: the call is a jump, patched when the map
    changes.
    """

    target: int | None = None


@dataclass(frozen=True, slots=True)
class JitFunc:
    """One function. Jumps are relative as after rewriting, calls are offsets from ``call_base``, addresses are final.
    """

    insns: tuple[Insn, ...]
    call_base: int = 0
    """Address of ``__bpf_call_base``, the base of the immediates of calls."""
    index: int = 0
    """Its index in the program; 0 is the main function."""
    stack_depth: int = 0
    """Stack size in bytes."""
    tail_call_reachable: bool = False
    exception_cb: bool = False
    """The callback that bpf_throw() calls instead of returning."""
    exception_boundary: bool = False
    """The main function of a program that throws: it saves every register that the callback restores."""
    private_stack: int = 0
    """Per-CPU offset of its private stack (``aux->priv_stack_ptr``); 0: it uses the kernel stack."""
    arena: JitArena | None = None
    pokes: tuple[Poke, ...] = ()
    """Poke descriptors; the immediate of a direct tail call is an index into them, from 1."""
    indirect_targets: frozenset[int] = frozenset()
    """Slots that a jump by a register can reach."""
    from_classic: bool = False
    """Converted from classic BPF."""
    unprivileged: bool = False
    """Loaded without CAP_SYS_ADMIN."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class JitProgram:
    """The functions of a program, the main one first."""

    funcs: tuple[JitFunc, ...]

    def __iter__(self) -> Iterator[JitFunc]:
        return iter(self.funcs)
