"""Map look-ups as instructions (``map_gen_lookup`` of the map types)."""

from emu.machine.address_map import round_up
from trampoline.bpf.isa.insn import Alu, Insn, Size
from trampoline.bpf.program import MapSpec
from trampoline.bpf.rewrite import emit
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.rules import HTAB_ELEM, LRU_REF, MAP_OPERATIONS, RewriteRules
from trampoline.bpf.uapi import MapType

_INNER_MAP = 1 << 12  # BPF_F_INNER_MAP


def inlined_lookup(spec: MapSpec, rules: RewriteRules, env: Environment) -> list[Insn] | None:
    """bpf_map_lookup_elem(r1, r2) of this map inlined; None if its type has no inlined form."""
    match spec.type:
        case MapType.ARRAY:
            if spec.flags & _INNER_MAP:
                return None
            return _array(spec, rules, round_up(spec.value_size, 8), [])
        case MapType.PERCPU_ARRAY:
            if not rules.inlines_percpu:
                return None
            return _array(spec, rules, 8, [emit.load(0, 0, 0), emit.percpu(0, 0)])
        case MapType.ARRAY_OF_MAPS:
            inner = [emit.load(0, 0, 0), emit.jump_if(emit.JEQ, 0, 0, 1)]
            return _array(spec, rules, 8, inner)
        case MapType.HASH:
            return [*_find(env), emit.jump_if(emit.JEQ, 0, 0, 1), _to_value(spec)]
        case MapType.LRU_HASH:
            return [
                *_find(env),
                emit.jump_if(emit.JEQ, 0, 0, 4),
                emit.load(1, 0, LRU_REF, Size.B),
                emit.jump_if(emit.JNE, 1, 0, 1),
                emit.store_imm(0, LRU_REF, 1, Size.B),
                _to_value(spec),
            ]
        case MapType.PERCPU_HASH:
            if not rules.inlines_percpu:
                return None
            return [
                *_find(env),
                emit.jump_if(emit.JEQ, 0, 0, 3),
                _to_value(spec),
                emit.load(0, 0, 0),
                emit.percpu(0, 0),
            ]
        case MapType.HASH_OF_MAPS:
            return [*_find(env), emit.jump_if(emit.JEQ, 0, 0, 2), _to_value(spec), emit.load(0, 0, 0)]
    return None


def _array(spec: MapSpec, rules: RewriteRules, element: int, then: list[Insn]) -> list[Insn]:
    """r0 = the element's address, or NULL past the end; ``then`` continues with the address, and may jump to the NULL.
    """
    if element & (element - 1):
        scale = emit.alu_imm(Alu.MUL, 0, element)
    else:
        scale = emit.alu_imm(Alu.LSH, 0, element.bit_length() - 1)
    return [
        emit.alu_imm(Alu.ADD, 1, rules.array_value),
        emit.load(0, 2, 0, Size.W),
        emit.jump_if(emit.JGE, 0, spec.max_entries, 3 + len(then)),
        scale,
        emit.alu(Alu.ADD, 0, 1),
        *then,
        emit.jump(1),
        emit.mov_imm(0, 0),
    ]


def _find(env: Environment) -> list[Insn]:
    return [emit.call(env.call(MAP_OPERATIONS[MapType.HASH]["lookup"]))]


def _to_value(spec: MapSpec) -> Insn:
    return emit.alu_imm(Alu.ADD, 0, HTAB_ELEM + round_up(spec.key_size, 8))
