"""Installs rewritten functions as a program: compiles, places, registers exceptions and symbols, frees as a whole."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from emu.errors import GuestFault
from emu.kernel.structs import PERCPU
from emu.kernel.text.kallsyms import Symbol
from emu.machine.address_map import PAGE_MASK
from trampoline.bpf.boot import Boot
from trampoline.bpf.helpers.runtime.runtime import Runtime
from trampoline.bpf.install.extable import ExceptionTable
from trampoline.bpf.install.frame_words import stack_words
from trampoline.bpf.install.listing import Listing
from trampoline.bpf.install.poke_desc import DirectTailCalls, PokeKey
from trampoline.bpf.install.tag import before_placing, calc_tag
from trampoline.bpf.isa.insn import CALL, LD_IMM64, CallKind, Imm64, Insn
from trampoline.bpf.jit.bpf_int_jit_compile import compile_func
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_image import JitImage
from trampoline.bpf.jit.jit_input import JitFunc, Poke
from trampoline.bpf.jit.rules import JitBoot, JitRules
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.prog import BpfProg, TailOwner, Uses
from trampoline.bpf.program import LineInfo
from trampoline.bpf.structs import bpf_prog, bpf_prog_aux
from trampoline.bpf.uapi import AttachType

__all__ = ["InstallFunction", "Installed", "Installer", "PokeKey"]

_ROUNDS = 4
"""Maximum number of compilations until the image sizes match their allocations: encodings depend on addresses."""
_NAME = 15
_STACK_SEARCHED = 1024
"""Bytes of stack searched for a caller after a fault."""


@dataclass(frozen=True, slots=True)
class InstallFunction:
    """A rewritten function: in a call of another function, or its address, ``off`` contains that function's number."""

    func: JitFunc
    origins: tuple[int | None, ...] | None = None
    """Slot of each instruction in the program as loaded; None: same slots as in this function."""
    pokes: tuple[PokeKey, ...] = ()
    """The program array slots that its direct tail calls follow."""
    private_stack: bool = False
    """It runs on a separate stack in per-CPU memory (7.2)."""
    name: str = ""
    """Name from BTF, for functions other than the main one."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A program's code in memory: one listing per function, the main one first."""

    tag: bytes
    functions: tuple[Listing, ...]

    def source_of(self, address: int) -> LineInfo | None:
        """Source line of the instruction at a guest address; None if unknown."""
        for listing in self.functions:
            offset = address - listing.image.address
            if 0 <= offset < len(listing.image):
                slot = listing.slot_at(offset)
                return None if slot is None else listing.line_of(slot)
        return None


class Installer:
    """Installer of one kernel's programs. ``tag_hash``: the hash of tags by its name in hashlib."""

    def __init__(self, runtime: Runtime, rules: JitRules, tag_hash: str, boot: Boot) -> None:
        self._runtime, self._kernel, self._tag_hash = runtime, runtime.kernel, tag_hash
        self.rules = rules
        self.boot = JitBoot(boot, this_cpu_off=PERCPU.offset("this_cpu_off"))
        self.extable = ExceptionTable(runtime.kernel)
        self.installed: dict[int, Installed] = {}
        """Installed programs by address of their ``struct bpf_prog``."""

    def source_of(self, fault: GuestFault) -> LineInfo | None:
        """Source line of the program in which the guest faulted, or which called the faulting code; None if the program
        has no lines, or no program was running.
        """
        installed = list(self.installed.values())
        found = (one.source_of(address) for address in [fault.rip, *self._callers(fault)] for one in installed)
        return next((line for line in found if line is not None), None)

    def _callers(self, fault: GuestFault) -> list[int]:
        """Return addresses on the stack, minus one: the last bytes of calls."""
        machine, top = self._kernel.machine, fault.registers["rsp"]
        addresses = range(top, min(top + _STACK_SEARCHED, (top | PAGE_MASK) + 1) - 7, 8)
        return [machine.read_u64(address) - 1 for address in addresses if machine.is_mapped(address)]

    def install(
        self,
        name: str,
        attach_type: AttachType,
        functions: Sequence[InstallFunction],
        insns: Sequence[Insn],
        *,
        lines: Sequence[LineInfo] = (),
        prog_type: int = 0,
        expected_attach_type: int = 0,
        sleepable: bool = False,
        uses: Uses = Uses(),  # noqa: B008  # frozen
        maps: Sequence[BpfMap] = (),
        owner: TailOwner | None = None,
    ) -> BpfProg:
        """Compile and place the functions of a program, the main one first.

        ``insns`` is the program as loaded, ``lines`` its source. The program keeps references to ``maps``.

        Raises KernelError -ENOMEM, JitError; nothing stays allocated then.
        """
        kernel, maps_of = self._kernel, self._runtime.maps
        with ExitStack() as undo:
            for found in maps:
                maps_of.get(found)
                undo.callback(maps_of.put, found)
            functions = [self._with_stack(name, function, undo) for function in functions]
            images = self._place(name, functions, undo)
            tag = calc_tag(insns, self._tag_hash)
            symbol = _symbol(tag, name)
            listings = tuple(
                Listing(
                    *(function.func, image, symbol if not number else self._name_of(function)),
                    lines=lines,
                    origins=function.origins,
                )
                for number, (function, image) in enumerate(zip(functions, images, strict=True))
            )
            for listing in listings:
                kernel.execmem.fill(listing.assembly(), partial(stack_words, listing.func, self.rules))
            for function, image in zip(functions, images, strict=True):
                self.extable.add(image.address, image.extable)
                undo.callback(self.extable.remove, image.address, image.extable)
                if image.pokes:
                    undo.callback(DirectTailCalls(kernel, self.rules, image, function.pokes).remove)
            for listing in listings[1:]:
                added = kernel.kallsyms.add(listing.name, listing.image.address, len(listing.image))
                undo.callback(kernel.kallsyms.remove, added)
            main = images[0]
            everything = ExitStack()
            prog = self._runtime.programs.adopt(
                *(name, attach_type, main.address, len(main), everything.close),
                symbol=symbol,
                sleepable=sleepable,
                uses=uses,
            )
            everything.push(undo.pop_all())
        self._fill_in(prog, tag, insns, functions[0].func, prog_type, expected_attach_type)
        prog.tail_call_reachable, prog.tail_owner = functions[0].func.tail_call_reachable, owner
        self.installed[prog.address] = Installed(tag, listings)
        everything.callback(self.installed.pop, prog.address)
        return prog

    # Memory ---------------------------------------------------------------------------------------------------------

    def _with_stack(self, name: str, function: InstallFunction, undo: ExitStack) -> InstallFunction:
        """Allocate a function's private stack, with a guard at both ends."""
        func = function.func
        if not function.private_stack:
            return function
        size = (func.stack_depth + 7 & -8) + 2 * self.rules.private_stack_guard
        percpu = self._kernel.percpu
        offset = percpu.alloc(size, f"stack of {name}")
        undo.callback(percpu.free, offset)
        return replace(function, func=replace(func, private_stack=offset))

    def _place(self, name: str, functions: Sequence[InstallFunction], undo: ExitStack) -> list[JitImage]:
        """Compile each function at its final address."""
        execmem = self._kernel.execmem
        guess = self._kernel.layout.modules
        addresses = [guess] * len(functions)
        sizes = [len(image) for image in self._compile(functions, addresses)]
        for _ in range(_ROUNDS):
            with ExitStack() as taken:
                addresses = []
                for size in sizes:
                    addresses.append(execmem.alloc(size, f"bpf_prog {name}"))
                    taken.callback(execmem.free, addresses[-1])
                images = self._compile(functions, addresses)
                if [len(image) for image in images] == sizes:
                    undo.push(taken.pop_all())
                    return images
                sizes = [len(image) for image in images]
        raise JitError("the functions' sizes do not settle")

    def _compile(self, functions: Sequence[InstallFunction], addresses: Sequence[int]) -> list[JitImage]:
        made = []
        for function, address in zip(functions, addresses, strict=True):
            func = self._linked(function, addresses)
            made.append(compile_func(func, address, self.rules, self.boot))
        return made

    def _linked(self, function: InstallFunction, addresses: Sequence[int]) -> JitFunc:
        """A function with the addresses of the others, and of the programs that its direct tail calls reach."""
        base = self._runtime.call_base
        insns = tuple(_with_address(insn, addresses, base) for insn in function.func.insns)
        pokes = tuple(Poke(self._target(key)) for key in function.pokes)
        return replace(function.func, insns=insns, call_base=base, pokes=pokes)

    def _target(self, key: PokeKey) -> int | None:
        found = key.map.get(key.slot)
        return None if found is None else found.bpf_func + self.rules.tail_call_offset

    # Attributes ------------------------------------------------------------------------------------------------------

    def _name_of(self, function: InstallFunction) -> str:
        return _symbol(calc_tag(before_placing(function.func.insns), self._tag_hash), function.name or "F")

    def _fill_in(
        self, prog: BpfProg, tag: bytes, insns: Sequence[Insn], func: JitFunc, prog_type: int, attach: int
    ) -> None:
        machine = self._kernel.machine
        view = bpf_prog.view(machine, prog.address)
        view.type, view.expected_attach_type, view.tag = prog_type, attach, tag
        view.len = sum(insn.slots for insn in insns)
        aux = bpf_prog_aux.view(machine, view.aux)
        aux.stack_depth, aux.tail_call_reachable = func.stack_depth, func.tail_call_reachable
        aux.prog, aux.name = prog.address, prog.name.encode()[:_NAME]

    def symbols(self, prog: BpfProg) -> list[Symbol | None]:
        """The kernel symbols of a program's functions."""
        found = self.installed[prog.address]
        return [self._kernel.kallsyms.at(listing.image.address) for listing in found.functions]


def _symbol(tag: bytes, name: str) -> str:
    """``bpf_prog_<tag>_<name>`` (``bpf_get_prog_name``)."""
    return f"bpf_prog_{tag.hex()}" + (f"_{name}" if name else "")


def _with_address(insn: Insn, addresses: Sequence[int], base: int) -> Insn:
    if insn.code == CALL and insn.src == CallKind.SUBPROG:
        return replace(insn, imm=addresses[insn.off] - base)
    if insn.code == LD_IMM64 and insn.src == Imm64.FUNC:
        return replace(insn, imm=addresses[insn.off])
    return insn
