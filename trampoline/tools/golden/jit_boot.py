"""Boot-time parameters of the JIT's code, gathered from all recorded cases of the boot.

Recordings name the addresses that the code refers to; a thunk that is named is in use. Code bytes are not
examined.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trampoline.bpf.boot import Boot
from trampoline.bpf.errors import GoldenError
from trampoline.bpf.jit.encode import REGISTER_NAMES
from trampoline.bpf.jit.rules import IndirectJump, JitBoot
from trampoline.tools.golden.jit_case import JitCase, RecordedPoke, call_immediates
from trampoline.tools.golden.trampoline_case import DEFAULT_THUNK

_BMI2_MODELS = re.compile(
    "max|host|Haswell|Broadwell|Skylake|Cascadelake|Cooperlake|Icelake|SapphireRapids|GraniteRapids|SierraForest"
    "|ClearwaterForest|DiamondRapids|EPYC|Dhyana|KnightsMill|YongFeng"
)
"""QEMU CPU models with BMI2."""
_INDIRECT_THUNK = re.compile(r"__x86_indirect(?:_jump|_call|(_its))?_thunk_(?:(r\w+)|array(?:\+0x([0-9a-f]+))?)")
_THUNK_SIZE, _ITS_THUNK_SIZE = 32, 64
"""Distance between the thunks of consecutive registers (RETPOLINE_THUNK_SIZE, ITS_THUNK_SIZE)."""
_CANONICAL = 1 << 64
_FIVE_LEVEL_BELOW = _CANONICAL - (1 << 47)
"""Lowest kernel address with four-level page tables; with five levels it is far lower."""


@dataclass(frozen=True, slots=True)
class RecordedBoot:
    """Parameters of a boot for the JIT."""

    jit: JitBoot
    call_base: int
    """Guest address of ``__bpf_call_base``; 0 if no call shows it."""
    slots: Mapping[tuple[str, int], int | None]
    """Contents of program maps by map name and key: the target address of tail calls, None for an empty slot."""


def recorded_boot(cases: Iterable[JitCase]) -> RecordedBoot:
    """The boot of these cases, which must be from one run."""
    cases = [case for case in cases if case.funcs]
    if not cases:
        return RecordedBoot(JitBoot(), 0, {})
    first = cases[0]
    symbols = {name: address for case in cases for name, address in case.symbols.items()}
    thunks = _thunks(symbols)
    jump = IndirectJump.PLAIN
    if thunks:
        jump = IndirectJump.THUNK
    elif re.search(r"\bspectre_v2=(retpoline,(lfence|amd)|eibrs,lfence)\b", first.cmdline):
        jump = IndirectJump.LFENCE
    jit = JitBoot(
        Boot(_return_thunk(first, symbols), _call_depth(cases)),
        bmi2=_has_bmi2(first.cpu),
        indirect_jump=jump,
        thunks=thunks,
        this_cpu_off=_this_cpu_off(cases),
        five_level_paging=first.aux < _FIVE_LEVEL_BELOW,
    )
    return RecordedBoot(jit, _call_base(cases), _slots(cases))


def _has_bmi2(cpu: str) -> bool:
    model, *features = cpu.split(",")
    for feature in features:
        if feature in ("+bmi2", "bmi2", "bmi2=on"):
            return True
        if feature in ("-bmi2", "bmi2=off"):
            return False
    return bool(_BMI2_MODELS.match(model))


def _return_thunk(case: JitCase, symbols: Mapping[str, int]) -> int | None:
    if case.boot is not None:
        plain = case.boot.text("return_thunk_sym") == DEFAULT_THUNK
        return None if plain else case.boot.address("return_thunk")
    thunks = {address for name, address in symbols.items() if name.endswith("return_thunk")}
    if len(thunks) > 1:
        raise GoldenError(f"{case.run}: several return thunks are named")
    return next(iter(thunks), None)


def _call_depth(cases: list[JitCase]) -> int | None:
    if cases[0].boot is not None:
        return cases[0].boot.maybe_address("call_depth_gs_offset")
    return _percpu(cases, "sar")


def _this_cpu_off(cases: list[JitCase]) -> int | None:
    return _percpu(cases, "add")


def _percpu(cases: list[JitCase], mnemonic: str) -> int | None:
    """The per-CPU address that instructions with this mnemonic refer to."""
    for case in cases:
        for func in case.funcs:
            for reloc in func.relocs:
                if reloc.kind == "percpu" and reloc.insn == mnemonic:
                    return reloc.target
    return None


def _thunks(symbols: Mapping[str, int]) -> dict[int, int]:
    """Thunks of indirect jumps by register: the recorded ones, and the others computed from them."""
    named: dict[int, int] = {}
    size = _THUNK_SIZE
    for name, address in symbols.items():
        found = _INDIRECT_THUNK.fullmatch(name)
        if not found:
            continue
        size = _ITS_THUNK_SIZE if found[1] else _THUNK_SIZE
        if found[2] is None:
            named[int(found[3] or "0", 16) // size] = address
        elif found[2] in REGISTER_NAMES:
            named[REGISTER_NAMES.index(found[2])] = address
    if not named:
        return {}
    register, address = next(iter(named.items()))
    return {number: address + size * (number - register) for number in range(16)} | named


def _call_base(cases: list[JitCase]) -> int:
    """``__bpf_call_base``: the base from which most calls reach a function that is named in their case."""
    votes: Counter[int] = Counter()
    for case in cases:
        addresses = set(case.symbols.values())
        for func in case.funcs:
            for imm in set(call_immediates(func.insnsi)):
                votes.update(address - imm for address in addresses)
    return votes.most_common(1)[0][0] if votes else 0


def _slots(cases: list[JitCase]) -> dict[tuple[str, int], int | None]:
    """Contents of program maps: recorded insertions, otherwise the named jump targets of the cases."""
    slots: dict[tuple[str, int], int | None] = {}
    for case in cases:
        if case.put is not None:
            number, key = case.put
            name = next((c.maps[number] for c in cases if number in c.maps), "")
            slots[name, key] = case.funcs[0].address + case.rules.tail_call_offset
    # Cases with fewer unknown calls first: they determine the others' calls.
    for case in sorted(cases, key=lambda case: len(_calls(case))):
        named = [address for name, address in case.symbols.items() if name.startswith("prog:")]
        unknown = [call for call in _calls(case) if call not in slots]
        left = [address for address in named if address not in slots.values()]
        for number, call in enumerate(unknown):
            slots[call] = left[number] if number < len(left) else None
    return slots


def _calls(case: JitCase) -> list[tuple[str, int]]:
    """Direct tail calls of a case, in order."""
    pokes: dict[RecordedPoke, None] = {}
    for func in case.funcs:
        pokes.update(dict.fromkeys(func.pokes))
    return list(dict.fromkeys((poke.map, poke.key) for poke in pokes))
