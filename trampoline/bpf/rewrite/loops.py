"""Inlining of bpf_loop() with one callback (``inline_bpf_loop``)."""

from errno import E2BIG

from trampoline.bpf.isa.insn import CALL, Alu, CallKind, Insn
from trampoline.bpf.rewrite import emit
from trampoline.bpf.rewrite.nodes import InsnNode, NodeList

MAX_LOOPS = 8 << 20
_SAVED = 3 * 8
"""Stack bytes for r6, r7 and r8, saved below the function's stack."""


def inline_loops(code: NodeList, depths: list[int]) -> None:
    """Inline the calls that verification marked as suitable; increases ``depths``, the stack bytes by function."""
    function_of = code.function_of()
    deeper = {function_of[id(node)] for node in code.nodes if node.facts is not None and node.facts.inlines_loop}
    for number in deeper:
        depths[number] = -(-depths[number] // 8) * 8 + _SAVED

    def loop(node: InsnNode) -> list[Insn | InsnNode] | None:
        if node.facts is None or not node.facts.inlines_loop:
            return None
        return _loop(-depths[function_of[id(node)]], node.facts.loop_callback)

    code.expand(loop)


def _loop(base: int, callback: int) -> list[Insn | InsnNode]:
    """r1: number of iterations, r3: the callback's context. r0: iterations done, or -E2BIG."""
    call = InsnNode(Insn(CALL, src=CallKind.SUBPROG), func=callback)
    return [
        emit.jump_if(emit.JLE, 1, MAX_LOOPS, 2),
        emit.mov32_imm(0, -E2BIG),
        emit.jump(16),
        emit.store(10, base, 6),
        emit.store(10, base + 8, 7),
        emit.store(10, base + 16, 8),
        emit.mov(6, 1),
        emit.mov32_imm(7, 0),
        emit.mov(8, 3),
        emit.jump_if_reg(emit.JGE, 7, 6, 5),  # all iterations done
        emit.mov(1, 7),
        emit.mov(2, 8),
        call,
        emit.alu_imm(Alu.ADD, 7, 1),
        emit.jump_if(emit.JEQ, 0, 0, -6),  # the callback returned 0: continue
        emit.mov(0, 7),
        emit.load(6, 10, base),
        emit.load(7, 10, base + 8),
        emit.load(8, 10, base + 16),
    ]
