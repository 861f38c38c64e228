"""The rewriting passes of one program, in the kernel's order (the end of ``bpf_check``, and ``jit_subprogs``)."""

from collections.abc import Sequence

from trampoline.bpf.isa.insn import CALL, CallKind
from trampoline.bpf.rewrite import emit
from trampoline.bpf.rewrite.constants import decide_branches
from trampoline.bpf.rewrite.context_access import convert_accesses
from trampoline.bpf.rewrite.dead_code import hard_wire_branches, remove_dead_code, remove_nops
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.fixups import Fixups
from trampoline.bpf.rewrite.loops import inline_loops
from trampoline.bpf.rewrite.nodes import NodeList, laid_out
from trampoline.bpf.rewrite.rewritten_program import RewrittenFunc, RewrittenProgram
from trampoline.bpf.rewrite.rules import RewriteRules
from trampoline.bpf.rewrite.skb_context import SkbLayout
from trampoline.bpf.rewrite.zext_cmpxchg import extend_exchanged
from trampoline.bpf.verifier.state.result import SubprogFacts, Verified


def rewrite(
    verified: Verified,
    rules: RewriteRules,
    env: Environment,
    *,
    skb: SkbLayout | None = None,
    indirect_targets: Sequence[int] = (),
) -> RewrittenProgram:
    """The functions of an accepted program as input for the JIT, except for their own addresses.

    ``skb``: offsets of the kernel's struct sk_buff, for socket filters. ``indirect_targets``: slots of the loaded
    program that register jumps can reach. Raises RewriteError for an unknown address or a rewriting that is not
    modelled.
    """
    program = verified.program
    code = NodeList(verified)
    depths = [-(-subprog.stack_depth // 8) * 8 for subprog in verified.subprogs]
    throws = any(
        insn.code == CALL and insn.src == CallKind.KFUNC and env.kfunc_name(insn.imm) == "bpf_throw"
        for insn in program.insns
    )
    if rules.decides_constants:
        decide_branches(code)
    inline_loops(code, depths)
    hard_wire_branches(code)
    remove_dead_code(code)
    remove_nops(code)
    subprogs = [verified.subprogs[number] for number in code.numbers if number is not None]
    depths = [depths[number] for number in code.numbers if number is not None]
    extend_exchanged(code)
    convert_accesses(code, int(program.prog_type), skb)
    if throws and not any(subprog.is_exception_callback for subprog in subprogs):
        # The exception callback: its return value is the thrown value.
        code.append_function([emit.mov(0, 1), emit.exit_()])
        subprogs.append(SubprogFacts(start=-1, is_exception_callback=True))
        depths.append(0)
    fixups = Fixups(program, rules, env, depths)
    fixups.run(code)
    targets = frozenset(indirect_targets)
    funcs = []
    for number, (nodes, subprog) in enumerate(zip(code.functions(), subprogs, strict=True)):
        slot, reached = 0, set()
        for node in nodes:
            if node.origin in targets:
                reached.add(slot)
            slot += node.insn.slots
        funcs.append(
            RewrittenFunc(
                laid_out(nodes),
                tuple((place, node.func) for place, node in enumerate(nodes) if node.func is not None),
                stack_depth=depths[number],
                tail_call_reachable=subprog.tail_call_reachable,
                exception_cb=subprog.is_exception_callback,
                exception_boundary=throws and number == 0,
                uses_private_stack=subprog.uses_private_stack,
                indirect_targets=frozenset(reached),
                name=subprog.name,
                origins=tuple(node.origin for node in nodes),
            )
        )
    return RewrittenProgram(tuple(funcs), tuple(fixups.tail_calls), env.call_base)
