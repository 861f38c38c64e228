"""The rewritten program, and linking with its functions' addresses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trampoline.bpf.isa.insn import CALL, Insn
from trampoline.bpf.jit.jit_input import JitArena, JitFunc, JitProgram, Poke


@dataclass(frozen=True, slots=True)
class TailCall:
    """A direct tail call: index of its map in the program, and the key."""

    map: int
    key: int


@dataclass(frozen=True, slots=True)
class RewrittenFunc:
    """One function. ``refs``: by index of an instruction, the number of the function that it calls or points to."""

    insns: tuple[Insn, ...]
    refs: tuple[tuple[int, int], ...]
    stack_depth: int
    tail_call_reachable: bool
    exception_cb: bool
    exception_boundary: bool
    uses_private_stack: bool
    indirect_targets: frozenset[int]
    name: str = ""
    origins: tuple[int | None, ...] | None = None
    """Slot of each instruction in the loaded program; None for one added by rewriting."""


@dataclass(frozen=True, slots=True)
class RewrittenProgram:
    """The functions in order, main first."""

    funcs: tuple[RewrittenFunc, ...]
    tail_calls: tuple[TailCall, ...]
    call_base: int

    def link(
        self,
        addresses: Sequence[int],
        *,
        pokes: Sequence[Poke] | None = None,
        private_stacks: Sequence[int] = (),
        arena: JitArena | None = None,
    ) -> JitProgram:
        """The JIT's input, given the address of each function (``jit_subprogs``).

        ``pokes``: current state of each direct tail call's slot; ``private_stacks``: per-CPU offset for each function,
        0 for none.
        """
        held = tuple(pokes) if pokes is not None else tuple(Poke() for _ in self.tail_calls)
        return JitProgram(
            tuple(
                JitFunc(
                    self._resolved(func, addresses),
                    call_base=self.call_base,
                    index=number,
                    stack_depth=func.stack_depth,
                    tail_call_reachable=func.tail_call_reachable,
                    exception_cb=func.exception_cb,
                    exception_boundary=func.exception_boundary,
                    private_stack=private_stacks[number] if private_stacks else 0,
                    arena=arena,
                    pokes=held,
                    indirect_targets=func.indirect_targets,
                    name=func.name,
                )
                for number, func in enumerate(self.funcs)
            )
        )

    def _resolved(self, func: RewrittenFunc, addresses: Sequence[int]) -> tuple[Insn, ...]:
        insns = list(func.insns)
        for place, number in func.refs:
            insn = insns[place]
            value = addresses[number] - self.call_base if insn.code == CALL else addresses[number]
            insns[place] = replace(insn, off=number, imm=value)
        return tuple(insns)
