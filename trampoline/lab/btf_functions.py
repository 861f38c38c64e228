"""The functions of a BTF by what a call of each needs: bodies for a kernel that has them all, and who may be traced."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from errno import EBUSY, EINVAL
from functools import cache, cached_property
from typing import NamedTuple

from emu.kernel.config import VOLUNTARY
from emu.kernel.routines import kernel_routines
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.stamped_text import StampedFunctions, StampedText
from trampoline.bpf.btf.btf import Btf, BtfKind, model_of
from trampoline.bpf.btf.func_model import MAX_ARG_SIZE, MAX_BPF_FUNC_ARGS, MAX_REG_SLOTS, FuncModel
from trampoline.bpf.errors import ENOTSUPP, KernelError
from trampoline.bpf.uapi import AttachType
from trampoline.callees import NOTRACE, callees
from trampoline.image.generator import ARG_REGISTERS
from trampoline.releases.kernel_release import KernelRelease

_NEAR = 1 << 31


class Shape(NamedTuple):
    """How arguments and return value of a function travel.

    ``ret_size`` is 0, 1, 2, 4, 8 or 16 bytes, or -1 where the caller gives the memory for it. ``narrow``: the only
    slot on the stack is of 4 bytes at most, so that its upper half is nobody's.
    """

    reg_slots: int
    stack_slots: int
    ret_size: int
    narrow: bool = False

    @property
    def slots(self) -> int:
        """Words of all arguments."""
        return self.reg_slots + self.stack_slots

    def result(self, *words: int) -> int | None:
        """What a stamped function of this shape returns in rax for the words of its arguments, those in registers
        first: their sum modulo its size. None: it returns nothing.
        """
        if len(words) != self.slots:
            raise ValueError(f"{self.slots} words wanted, {len(words)} given")
        if not self.ret_size:
            return None
        if self.ret_size < 0:
            return words[0]
        last = [words[-1] & 0xFFFFFFFF] if self.narrow else list(words[-1:])
        return sum([*words[:-1], *last]) & (1 << 8 * min(self.ret_size, 8)) - 1

    def body(self) -> str:
        """Assembly text of a function of this shape that returns ``result``."""
        if not self.ret_size:
            return "ret"
        if self.ret_size < 0:
            return "mov rax, rdi ; where the caller wants the return value\nret"
        wide = self.ret_size >= 8
        total, word = ("rax", "qword") if wide else ("eax", "dword")
        names = [register if wide else _LOW_HALVES[register] for register in ARG_REGISTERS[: self.reg_slots]]
        lines = [f"mov {total}, {names[0]}" if names else "xor eax, eax"]
        lines += [f"add {total}, {name}" for name in names[1:]]
        if self.narrow and wide:
            lines += ["mov r11d, dword ptr [rsp + 8] ; the upper half is nobody's", "add rax, r11"]
        else:
            lines += [f"add {total}, {word} ptr [rsp + {8 + 8 * slot:#x}]" for slot in range(self.stack_slots)]
        lines += {1: ["movzx eax, al"], 2: ["movzx eax, ax"], 16: ["xor edx, edx"]}.get(self.ret_size, [])
        return "\n".join([*lines, "ret"])


_LOW_HALVES = dict(zip(ARG_REGISTERS, ("edi", "esi", "edx", "ecx", "r8d", "r9d"), strict=True))
_NOT_PASSED = frozenset({BtfKind.VOID, BtfKind.FLOAT})
_RETURNED = frozenset({BtfKind.INT, BtfKind.PTR, BtfKind.ENUM, BtfKind.ENUM64})
_TAKEN = _RETURNED | {BtfKind.STRUCT}
_RUNS_BEFORE = frozenset({AttachType.TRACE_FENTRY, AttachType.TRACE_FENTRY_MULTI})


class BtfFunctions:
    """Every function of a BTF, by rising type id: a source of kernel text whose functions return ``Shape.result``."""

    def __init__(self, btf: Btf) -> None:
        self.btf = btf
        records = list(btf.signatures())
        self.ids = array("I", [record[0] for record in records])
        """Type ids, rising."""
        self.names: Sequence[str] = [record[1] for record in records]
        self._protos = array("I", [record[2] for record in records])
        shapes: dict[Shape, int] = {}
        number_of = {
            proto: shapes.setdefault(_shape(btf, proto), len(shapes)) for proto in dict.fromkeys(self._protos)
        }
        self.shapes: Sequence[Shape] = list(shapes)
        """The shapes that there are."""
        self._shape_of = array("H", [number_of[proto] for proto in self._protos])
        self._sizes: dict[tuple[int, str], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def positions(self) -> Mapping[int, int]:
        """The position of each type id."""
        return dict(zip(self.ids, range(len(self)), strict=True))

    def shape(self, position: int) -> Shape:
        """The shape of the function at a position."""
        return self.shapes[self._shape_of[position]]

    def stamp(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> StampedText:
        """Lay out the functions that the kernel's text does not have yet: of a name that it has the first one is
        that.
        """
        standing = {name for name in symbols if 0 <= start - symbols[name] < _NEAR}
        kept = []
        for position, name in enumerate(self.names):
            if name in standing:
                standing.discard(name)
            else:
                kept.append(position)
        names, shapes, ids = self.names, self._shape_of, self.ids
        return StampedFunctions(
            [names[position] for position in kept],
            [shapes[position] for position in kept],
            [shape.body() for shape in self.shapes],
            [ids[position] for position in kept],
        ).stamp(start, entry, symbols)

    def model(self, type_id: int, release: KernelRelease) -> FuncModel:
        """The model of a function. KernelError: -EINVAL, -ENOTSUPP as ``model_of``, and for more slots than the
        release takes.
        """
        model = model_of(self.btf.function(type_id), union_args=release.union_args)
        if model.nr_regs > MAX_REG_SLOTS and not release.trampoline.stack_args:
            raise KernelError(
                ENOTSUPP, f"{model.name} needs {model.nr_regs} argument slots; {release.name} has {MAX_REG_SLOTS}"
            )
        return model

    def arg_sizes(self, type_id: int, release: KernelRelease) -> tuple[int, ...]:
        """Bytes of each argument of a function, without reading its model. KernelError as ``model``."""
        key = self._protos[self.positions[type_id]], release.name
        sizes = self._sizes.get(key)
        if sizes is None:
            if self._refusal(key[0], release):
                return self.model(type_id, release).arg_sizes
            params, _ = self.btf.prototype(key[0])
            sizes = self._sizes[key] = tuple([self.btf.passed(param)[1] for param in params])
        return sizes

    def refusals(self, release: KernelRelease, attach_type: AttachType = AttachType.TRACE_FENTRY) -> Sequence[int]:
        """For each function the errno that attaching a program of a type is refused with, 0 where it is not.

        -EINVAL: deny lists, and what ``model_of`` says. -ENOTSUPP: too many argument slots. -EBUSY, or -EINVAL for
        multi links: the kernel's routines, which stand here without a patch site.
        """
        protos = {proto: self._refusal(proto, release) for proto in set(self._protos)}
        errnos = array("H", map(protos.__getitem__, self._protos))
        by_name = denied_names(release, attach_type)
        no_site = EINVAL if attach_type.is_multi else EBUSY
        denied = dict.fromkeys(_without_site(), no_site) | dict.fromkeys(by_name, EINVAL)
        found: set[str] = set()
        for position, name in enumerate(self.names):
            if name in denied and (name in by_name or name not in found):
                found.add(name)
                errnos[position] = denied[name]
        return errnos

    def _refusal(self, proto: int, release: KernelRelease) -> int:
        """The errno of ``model``, without making one."""
        passed = self.btf.passed
        params, ret = self.btf.prototype(proto)
        taken = _TAKEN | {BtfKind.UNION} if release.union_args else _TAKEN
        if len(params) > MAX_BPF_FUNC_ARGS or (ret and passed(ret)[0] not in _RETURNED):
            return EINVAL
        slots = 0
        for param in params:
            kind, size = passed(param)
            if kind not in taken or not 0 < size <= MAX_ARG_SIZE:
                return EINVAL
            slots += (size + 7) // 8
        return ENOTSUPP if slots > (MAX_BPF_FUNC_ARGS if release.trampoline.stack_args else MAX_REG_SLOTS) else 0


def attachable(
    release: KernelRelease, btf: Btf | BtfFunctions, attach_type: AttachType = AttachType.TRACE_FENTRY
) -> tuple[list[int], Counter[int]]:
    """Type ids of the functions that a program of a type may be attached to, and how many others there are by errno:
    together all functions of the BTF.
    """
    functions = btf if isinstance(btf, BtfFunctions) else BtfFunctions(btf)
    refusals = functions.refusals(release, attach_type)
    refused = Counter(refusals)
    del refused[0]
    return [type_id for type_id, errno in zip(functions.ids, refusals, strict=True) if not errno], refused


def denied_names(release: KernelRelease, attach_type: AttachType) -> frozenset[str]:
    """Functions that a program of a type is refused on by their name: -EINVAL."""
    denied = NOTRACE | release.btf_id_deny
    return denied if attach_type in _RUNS_BEFORE else denied | release.noreturn_deny


@cache
def _without_site() -> frozenset[str]:
    """Names of the kernel's routines: guest code here, without a patch site."""
    routines = {**kernel_routines(VOLUNTARY), **callees(VOLUNTARY)}
    return frozenset(name for name, routine in routines.items() if not routine.host_call)


def _shape(btf: Btf, proto: int) -> Shape:
    params, ret = btf.prototype(proto)
    _, ret_size = btf.passed(ret)
    in_memory = ret_size > 2 * 8
    regs, stack, last = int(in_memory), 0, 0
    for param in params:
        kind, size = btf.passed(param)
        slots = 0 if kind in _NOT_PASSED else (size + 7) // 8
        last = size
        if size <= MAX_ARG_SIZE and regs + slots <= MAX_REG_SLOTS:
            regs += slots
        else:
            stack += slots
    returned = -1 if in_memory else 0 if not ret_size else max(1, 1 << (ret_size - 1).bit_length())
    return Shape(regs, stack, returned, stack == 1 and last <= 4)
