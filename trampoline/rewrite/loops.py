"""bpf_loop() with one callback becomes a loop around a call of it (``inline_bpf_loop``)."""

from errno import E2BIG

from trampoline.bpf.insn import CALL, Alu, CallKind, Insn
from trampoline.rewrite import ops
from trampoline.rewrite.nodes import Code, Node

MAX_LOOPS = 8 << 20
_SAVED = 3 * 8
"""r6, r7 and r8 are saved below the function's stack."""


def inline_loops(code: Code, depths: list[int]) -> None:
    """Inlines the calls that verification found fit for it; ``depths``, stack bytes by function, grow."""
    function_of = code.function_of()
    deeper = {function_of[id(node)] for node in code.nodes if node.facts is not None and node.facts.inlines_loop}
    for number in deeper:
        depths[number] = -(-depths[number] // 8) * 8 + _SAVED

    def loop(node: Node) -> list[Insn | Node] | None:
        if node.facts is None or not node.facts.inlines_loop:
            return None
        return _loop(-depths[function_of[id(node)]], node.facts.loop_callback)

    code.expand(loop)


def _loop(base: int, callback: int) -> list[Insn | Node]:
    """r1: how often, r3: the callback's context. r0: how often it ran, or -E2BIG."""
    call = Node(Insn(CALL, src=CallKind.SUBPROG), func=callback)
    return [
        ops.jump_if(ops.JLE, 1, MAX_LOOPS, 2),
        ops.mov32_imm(0, -E2BIG),
        ops.jump(16),
        ops.store(10, base, 6),
        ops.store(10, base + 8, 7),
        ops.store(10, base + 16, 8),
        ops.mov(6, 1),
        ops.mov32_imm(7, 0),
        ops.mov(8, 3),
        ops.jump_if_reg(ops.JGE, 7, 6, 5),  # counted up
        ops.mov(1, 7),
        ops.mov(2, 8),
        call,
        ops.alu_imm(Alu.ADD, 7, 1),
        ops.jump_if(ops.JEQ, 0, 0, -6),  # the callback goes on
        ops.mov(0, 7),
        ops.load(6, 10, base),
        ops.load(7, 10, base + 8),
        ops.load(8, 10, base + 16),
    ]
