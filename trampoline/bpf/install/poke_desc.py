"""Direct tail calls: jumps in compiled code that follow a slot of a program array (``bpf_arch_poke_desc_update``).

``bypass`` jumps over the call while the slot is empty, ``target`` jumps into the program, past its prologue.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from asm.encodings import NOPS, jmp_rel32
from emu.kernel.kernel import Kernel
from trampoline.bpf.jit.jit_image import JitImage
from trampoline.bpf.jit.rules import JitRules
from trampoline.bpf.maps.prog_array import ProgArray
from trampoline.bpf.prog import BpfProg


@dataclass(frozen=True, slots=True)
class PokeKey:
    """The map slot that a poke descriptor follows."""

    map: ProgArray
    slot: int


class DirectTailCalls:
    """The direct tail calls of one image, from its placement in memory until it is freed."""

    def __init__(self, kernel: Kernel, rules: JitRules, image: JitImage, keys: Sequence[PokeKey]) -> None:
        self._kernel, self._rules, self._image, self._keys = kernel, rules, image, keys
        for found in self._maps():
            found.patches.append(self._changed)

    def _maps(self) -> list[ProgArray]:
        """The program arrays, each once: maps compare by identity."""
        keys = (self._keys[place.poke] for place in self._image.pokes)
        return list({id(key.map): key.map for key in keys}.values())

    def remove(self) -> None:
        """Stop following the maps; called before the image is freed."""
        for found in self._maps():
            found.patches.remove(self._changed)

    def _changed(self, found: ProgArray, slot: int, prog: BpfProg | None) -> None:
        for place in self._image.pokes:
            key = self._keys[place.poke]
            if key.map is not found or key.slot != slot:
                continue
            base = self._image.address
            bypass, target, end = base + place.bypass, base + place.target, base + place.end
            # The bypass is patched last when a program is set, and first when it is cleared.
            if prog is not None:
                self._patch(target, jmp_rel32(target, prog.bpf_func + self._rules.tail_call_offset))
                self._patch(bypass, NOPS[5])
            else:
                self._patch(bypass, jmp_rel32(bypass, end))
                self._patch(target, NOPS[5])

    def _patch(self, address: int, code: bytes) -> None:
        kernel = self._kernel
        with kernel.text_poke.text_mutex:
            if kernel.machine.read(address, len(code)) != code:
                kernel.text_poke.text_poke_bp(address, code)
