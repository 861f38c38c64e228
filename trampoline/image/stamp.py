"""The same trampoline on many functions: assembled once, then stamped out.

Two trampolines of one shape (rules, boot, argument layout, flags, programs) differ only in a few places: what depends
on where they stand, on the traced function's address and on the image's own structure. A stamp knows these places.
"""

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from asm import DisplacementError, Image, Line
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.address_map import ADDRESS_MASK
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.image.generator import (
    Skip,
    TrampFlag,
    TrampLinks,
    Trampoline,
    arch_prepare_bpf_trampoline,
    origin_body,
)
from trampoline.rules import TrampolineRules

MOST_STAMPS = 256
"""Shapes that are remembered; then all are forgotten."""

_CALL, _JMP = b"\xe8", b"\xe9"
_ACCOUNT = bytes.fromhex("6548c13d")
"""``sar qword ptr gs:[rip + disp32], imm8``."""
_IM_FORM, _FUNC_FORMS = (b"\x48\xbf", 8), ((b"\x48\xb8", 8), (b"\x48\xc7\xc0", 4))
"""``movabs rdi``; ``movabs rax`` and ``mov rax, imm32``: prefix and size of the immediate."""
_DISPLACEMENT = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class _Relative:
    """A 32-bit displacement at ``offset``, counted from ``end``. ``target`` is None for the traced function's body."""

    offset: int
    end: int
    target: int | None


@dataclass(frozen=True, slots=True)
class _Immediate:
    """A number of ``size`` bytes at ``offset``: the traced function's address, or the bpf_tramp_image's."""

    offset: int
    size: int
    is_im: bool


class _LinesOnDemand(Sequence[Line]):
    """Listing lines that are made when somebody reads them: of 50,000 images few are ever listed or executed."""

    def __init__(self, make: Callable[[], Sequence[Line]]) -> None:
        self._make: Callable[[], Sequence[Line]] | None = make
        self._lines: Sequence[Line] = ()

    def _made(self) -> Sequence[Line]:
        if self._make is not None:
            self._lines, self._make = self._make(), None
        return self._lines

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        return self._made()[index]

    def __len__(self) -> int:
        return len(self._made())


class Stamp:
    """One shape of trampoline, from one that was generated for ``func_addr`` with its body at ``body``."""

    def __init__(self, made: Trampoline, func_addr: int, im: int, body: int) -> None:
        self._made, self._func_addr, self._im, self._body = made, func_addr, im, body
        self._relative: list[_Relative] = []
        self._immediates: list[_Immediate] = []
        self._is_read = False
        """Most shapes are generated once: what differs elsewhere is looked for when a second one is asked for."""

    def _read(self) -> None:
        self._is_read = True
        image, func_addr = self._made.image, self._func_addr
        for line in image.lines:
            code = image.code_of(line)
            displacement_at = _displacement_at(line, code)
            if displacement_at is not None:
                (distance,) = _DISPLACEMENT.unpack_from(image.code, displacement_at)
                end = line.offset + line.size
                target = image.address + end + distance & ADDRESS_MASK
                if not image.address <= target < image.end:
                    self._relative.append(_Relative(displacement_at, end, None if target == self._body else target))
                continue
            for (prefix, size), value in ((_IM_FORM, self._im), *((form, func_addr) for form in _FUNC_FORMS)):
                number = code[len(prefix) :]
                if code.startswith(prefix) and number == value.to_bytes(8, "little")[:size]:
                    self._immediates.append(_Immediate(line.offset + len(prefix), size, value == self._im))

    def place(
        self, address: int, func_addr: int, im: int, name: str, lines: Callable[[], Sequence[Line]]
    ) -> Trampoline:
        """The trampoline of another function, at another address; ``lines`` makes its listing once that is read.

        Raises DisplacementError where a callee is out of reach.
        """
        if not self._is_read:
            self._read()
        made = self._made
        code = bytearray(made.image.code)
        for relative in self._relative:
            target = func_addr + self._body - self._func_addr if relative.target is None else relative.target
            distance = (target - address - relative.end + (1 << 63) & ADDRESS_MASK) - (1 << 63)
            if not -(1 << 31) <= distance < 1 << 31:
                raise DisplacementError(address + relative.end & ADDRESS_MASK, target, 32)
            _DISPLACEMENT.pack_into(code, relative.offset, distance)
        for immediate in self._immediates:
            value = (im if immediate.is_im else func_addr).to_bytes(8, "little")
            code[immediate.offset : immediate.offset + immediate.size] = value[: immediate.size]
        shift = address - made.image.address
        symbols = {label: at + shift for label, at in made.image.symbols.items()}
        return replace(
            made,
            image=Image(address, bytes(code), symbols, _LinesOnDemand(lines), name),
            ip_after_call=None if made.ip_after_call is None else made.ip_after_call + shift,
            ip_epilogue=None if made.ip_epilogue is None else made.ip_epilogue + shift,
            skips=tuple(Skip(skip.prog, skip.nop + shift, skip.target + shift) for skip in made.skips),
        )


def _displacement_at(line: Line, code: bytes) -> int | None:
    if code[:1] in (_CALL, _JMP) and line.size == SITE_SIZE:
        return line.offset + 1
    return line.offset + len(_ACCOUNT) if code.startswith(_ACCOUNT) else None


class Stamps:
    """``arch_prepare_bpf_trampoline`` with a memory for shapes. For one kernel: callees must not move."""

    IS_CACHE = True

    def __init__(self) -> None:
        self._known: dict[Hashable, Stamp] = {}

    def prepare(
        self,
        rules: TrampolineRules,
        boot: Boot,
        model: FuncModel,
        flags: TrampFlag,
        links: TrampLinks,
        *,
        func_addr: int,
        address: int,
        im: int,
        symbols: Mapping[str, int],
        site_offset: int | None = None,
    ) -> Trampoline:
        """See ``arch_prepare_bpf_trampoline``: the same bytes, the same errors."""
        where: dict[str, Any] = {"func_addr": func_addr, "address": address, "im": im, "symbols": symbols}

        def generate() -> Trampoline:
            return arch_prepare_bpf_trampoline(rules, boot, model, flags, links, site_offset=site_offset, **where)

        # Where a number has another form, the bytes around it move.
        forms = tuple(value >= 1 << 32 and value < (1 << 64) - (1 << 31) for value in (func_addr, im))
        sizes = tuple(arg.size for arg in model.args)
        key = (rules, boot, sizes, flags, links, site_offset, forms, func_addr < 1 << 32)
        stamp = self._known.get(key)
        if stamp is not None:
            return stamp.place(
                address, func_addr, im, f"bpf_trampoline of {model.name}", lambda: generate().image.lines
            )
        made = generate()
        if im >= 1 << 32 and all(im not in (call.cookie, call.prog) for call in links.calls):
            if len(self._known) >= MOST_STAMPS:
                self._known.clear()
            self._known[key] = Stamp(made, func_addr, im, origin_body(rules, func_addr, site_offset))
        return made
