"""Divisions, helpers, maps and kfuncs in the form that the JIT expects (``do_misc_fixups``)."""

from dataclasses import replace

from trampoline.bpf.helpers.availability import Caller, helper_for
from trampoline.bpf.helpers.protos import helper_names
from trampoline.bpf.isa.insn import (
    ADDR_SPACE_CAST,
    CALL,
    LD_IMM64,
    MAY_GOTO,
    TAIL_CALL,
    Alu,
    CallKind,
    Cls,
    Imm64,
    Insn,
    Mode,
    Size,
    X,
)
from trampoline.bpf.isa.rules import MayGoto
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.rewrite import emit
from trampoline.bpf.rewrite.division import safe_division
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.errors import RewriteError
from trampoline.bpf.rewrite.inlined import inlined_helper, inlined_kfunc
from trampoline.bpf.rewrite.lookups import inlined_lookup
from trampoline.bpf.rewrite.loops import MAX_LOOPS
from trampoline.bpf.rewrite.nodes import InsnNode, NodeList
from trampoline.bpf.rewrite.rewritten_program import TailCall
from trampoline.bpf.rewrite.rules import MAP_HELPERS, MAP_OPERATIONS, RewriteRules

_MAX_TIMED_LOOPS = 0xFFFF
_GFP_KERNEL = 0xCC0
_STORAGE_GET = {"task_storage_get", "sk_storage_get", "inode_storage_get", "cgrp_storage_get"}
_LD_ABS = {Size.B: "8", Size.H: "16", Size.W: "32"}

Made = list[Insn | InsnNode]


class Fixups:
    """The pass over all instructions; ``tail_calls`` collects the direct ones."""

    def __init__(self, program: BpfProgram, rules: RewriteRules, env: Environment, depths: list[int]) -> None:
        self._program, self._rules, self._env, self._depths = program, rules, env, depths
        self._caller = Caller(
            rules.helpers,
            int(program.prog_type),
            int(program.attach),
            program.sleepable,
            program.target,
        )
        self.tail_calls: list[TailCall] = []
        self._several = False

    def run(self, code: NodeList) -> None:
        """Rewrite a program. Raises RewriteError for an unknown address or a rewriting that is not modelled."""
        self._several = len(code.starts) > 1
        function_of = code.function_of()
        bounded = {function_of[id(node)] for node in code.nodes if node.insn.code == MAY_GOTO}
        slots = self._rules.may_goto.stack
        for number in bounded:
            self._depths[number] += slots
        code.expand(lambda node: self._fixed(node, function_of[id(node)]))
        for number in bounded:
            code.begin_with(number, self._bound(-self._depths[number]))

    def _fixed(self, node: InsnNode, function: int) -> Made | None:
        insn = node.insn
        match insn.code:
            case c if c == LD_IMM64:
                self._imm64(node)
                return None
            case c if c == MAY_GOTO:
                return self._may_goto(node, -self._depths[function])
            case c if c == CALL:
                if insn.src == CallKind.SUBPROG:
                    return None
                return self._kfunc(node) if insn.src == CallKind.KFUNC else self._helper(node)
        if insn.cls in (Cls.ALU, Cls.ALU64) and insn.op in (Alu.DIV, Alu.MOD):
            made = safe_division(insn, self._rules.ax)
            return None if made is None else [*made]
        if insn.code == Cls.ALU64 | Alu.MOV | X and insn.off == ADDR_SPACE_CAST and insn.imm == 1:
            # To the kernel's address space: a 32-bit move clears the upper half, the JIT adds the arena's base.
            node.insn = emit.mov32(insn.dst, insn.src)
        elif insn.cls == Cls.LD and insn.mode in (Mode.ABS, Mode.IND):
            return self._load_packet(insn)
        return None

    def _imm64(self, node: InsnNode) -> None:
        """Replace map and kernel variable references by addresses (``convert_pseudo_ld_imm64``)."""
        insn, env = node.insn, self._env
        index, offset = insn.imm & 0xFFFFFFFF, insn.imm >> 32
        match insn.src:
            case Imm64.MAP_FD | Imm64.MAP_IDX:
                if index >= len(env.maps):
                    raise RewriteError(f"the address of map {index} is not known")
                value = env.maps[index]
            case Imm64.MAP_VALUE | Imm64.MAP_IDX_VALUE:
                if index not in env.map_values:
                    raise RewriteError(f"the address of the values of map {index} is not known")
                value = env.map_values[index] + offset
            case Imm64.BTF_ID:
                if index not in env.objects:
                    raise RewriteError(f"the address of the variable with BTF id {index} is not known")
                value = env.objects[index]
            case _:
                return
        # The kernel clears src only after jit_subprogs() has compiled a program of several functions.
        node.insn = replace(insn, src=insn.src if self._several else 0, imm=value)

    def _may_goto(self, node: InsnNode, slot: int) -> Made:
        ax = self._rules.ax
        leave = InsnNode(emit.jump_if(emit.JEQ, ax, 0, 0), target=node.target)
        ahead: Made = [emit.load(ax, 10, slot), leave, emit.alu_imm(Alu.SUB, ax, 1)]
        match self._rules.may_goto:
            case MayGoto.NONE:
                raise RewriteError("this release has no may_goto")
            case MayGoto.COUNTED:
                return [*ahead, emit.store(10, slot, ax)]
            case MayGoto.TIMED:
                # The clock is checked each time the count is exhausted; the check refills the count, or leaves it 0.
                clock = emit.call(self._env.call("arch_bpf_timed_may_goto"))
                refill = [emit.jump_if(emit.JNE, ax, 0, 2), emit.mov_imm(ax, slot), clock]
                return [*ahead, *refill, emit.store(10, slot, ax)]

    def _bound(self, slot: int) -> list[Insn]:
        """Initialisation at the start of a function with may_goto: the count, and the start time."""
        if self._rules.may_goto is MayGoto.COUNTED:
            return [emit.store_imm(10, slot, MAX_LOOPS)]
        return [emit.store_imm(10, slot, _MAX_TIMED_LOOPS), emit.store_imm(10, slot + 8, 0)]

    def _load_packet(self, insn: Insn) -> Made:
        """LD_ABS and LD_IND: a helper call; the program exits if the packet is too short (``bpf_gen_ld_abs``)."""
        helper = f"bpf_skb_load_helper_{_LD_ABS[insn.size]}_no_cache"
        where = [emit.mov_imm(2, insn.imm)]
        if insn.mode == Mode.IND:
            where = [emit.mov(2, insn.src)]
            if insn.imm:
                where.append(emit.alu_imm(Alu.ADD, 2, insn.imm))
        return [
            *where,
            emit.mov(1, 6),
            emit.call(self._env.call(helper)),
            emit.jump_if(emit.JSGE, 0, 0, 2),
            emit.alu32(Alu.XOR, 0, 0),
            emit.exit_(),
        ]

    def _kfunc(self, node: InsnNode) -> Made | None:
        name = self._env.kfunc_name(node.insn.imm)
        inlined = inlined_kfunc(name, int(self._program.attach))
        if inlined is not None:
            return [*inlined]
        node.insn = replace(node.insn, off=0, imm=self._env.call(name))
        return None

    def _helper(self, node: InsnNode) -> Made | None:
        program, rules, env = self._program, self._rules, self._env
        number = node.insn.imm
        names = helper_names()
        name = names[number] if 0 < number < len(names) else ""
        if name == "tail_call":
            node.insn = Insn(TAIL_CALL, imm=self._tail_call(node))
            return None
        if name in _STORAGE_GET:
            flags = _GFP_KERNEL if program.sleepable else rules.gfp_atomic
            return [emit.mov_imm(5, flags), emit.call(self._function(name, number))]
        if name in MAP_HELPERS and node.facts is not None and (spec := node.facts.map) is not None:
            operation = MAP_HELPERS[name]
            if operation == "lookup" and (found := inlined_lookup(spec, rules, env)) is not None:
                return [*found]
            operations = MAP_OPERATIONS.get(spec.type, {})
            if operation in operations:
                node.insn = emit.call(env.call(operations[operation]))
                return None
        inlined = inlined_helper(name, int(program.prog_type), int(program.attach), rules, env)
        if inlined is not None:
            return [*inlined]
        node.insn = emit.call(self._function(name, number))
        return None

    def _tail_call(self, node: InsnNode) -> int:
        """Number of a direct tail call, from 1; 0 for a call through the map."""
        facts = node.facts
        if facts is None or facts.map is None or facts.map_key is None or self._env.hardened:
            return 0
        self.tail_calls.append(TailCall(self._map_number(node), facts.map_key))
        return len(self.tail_calls)

    def _map_number(self, node: InsnNode) -> int:
        spec = node.facts.map if node.facts is not None else None
        return next(number for number, known in enumerate(self._program.maps) if known is spec)

    def _function(self, name: str, number: int) -> int:
        proto = helper_for(self._caller, number)
        if proto is None:
            raise RewriteError(f"helper {name or number} is not available to the program")
        return self._env.call(proto.function)
