"""A compiled function as a listing with its eBPF instructions and source lines, used in error messages."""

from bisect import bisect_right
from collections.abc import Sequence

from asm import Image, Line
from asm.decode import image_of
from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa.codec import encode
from trampoline.bpf.isa.insn import places
from trampoline.bpf.isa.text import format_insn
from trampoline.bpf.jit.jit_image import JitImage
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.program import LineInfo


class Listing:
    """Mapping from a function's machine code to its instructions and source lines."""

    def __init__(
        self,
        func: JitFunc,
        image: JitImage,
        name: str,
        *,
        lines: Sequence[LineInfo] = (),
        origins: Sequence[int | None] | None = None,
    ) -> None:
        """``lines``: the source, by slot of the program as loaded; ``origins``: the slot of each instruction there,
        None for one added by rewriting. Without ``origins`` all slots are unchanged.
        """
        self.func, self.image, self.name = func, image, name
        self._lines = sorted(lines, key=lambda line: line.slot)
        self._starts = [line.slot for line in self._lines]
        self._slots = places(func.insns)
        self._insns = dict(zip(self._slots, func.insns, strict=False))
        self._origins: dict[int, int] = {}
        known: int | None = None
        for slot, origin in zip(self._slots, self._slots if origins is None else origins, strict=False):
            # Code added by rewriting belongs to the instruction that it replaces or follows.
            known = origin if origin is not None else known
            if known is not None:
                self._origins[slot] = known

    def slot_at(self, offset: int) -> int | None:
        """Slot of the instruction whose code contains an offset of the image; None in the prologue and past the end."""
        slot = bisect_right(self.image.offsets, offset) - 1
        if slot < 0 or offset >= self.image.offsets[-1]:
            return None
        return self._slots[bisect_right(self._slots, slot) - 1]

    def line_of(self, slot: int) -> LineInfo | None:
        """Source line of an instruction, by its slot in this function."""
        origin = self._origins.get(slot)
        if origin is None:
            return None
        position = bisect_right(self._starts, origin) - 1
        return self._lines[position] if position >= 0 else None

    def assembly(self) -> Image:
        """The image with comments: the eBPF instruction at its first machine instruction, the source line at each."""
        plain = image_of(self.image.code, self.image.address, self.name)
        lines: list[Line] = []
        before: int | None = None
        for line in plain.lines:
            slot = self.slot_at(line.offset)
            comment = "" if slot is None else self._comment(slot, is_first=slot != before)
            before = slot
            lines.append(Line(line.offset, line.size, line.text, comment, "program"))
        return Image(plain.address, plain.code, {}, tuple(lines), self.name)

    def _comment(self, slot: int, *, is_first: bool) -> str:
        source = self.line_of(slot)
        where = f"{source}: {source.text.strip()}" if source is not None else ""
        if not is_first:
            return f"{slot}; {where}" if where else str(slot)
        text = self.insn_text(slot)
        return f"{text}; {where}" if where else text

    def insn_text(self, slot: int) -> str:
        """Slot and text of an instruction; its bytes if it has no text."""
        try:
            return f"{slot}: {format_insn(self._insns[slot])}"
        except BytecodeError:
            return f"{slot}: {encode([self._insns[slot]]).hex()}"
