"""Compiles a function to machine code at an address (``bpf_int_jit_compile``)."""

from trampoline.bpf.jit.do_jit import translate
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_image import ExtableEntry, JitImage, PokePlace, Reloc
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.layout_passes import Layout
from trampoline.bpf.jit.rules import JitBoot, JitRules


def compile_func(func: JitFunc, address: int, rules: JitRules, boot: JitBoot) -> JitImage:
    """The image of a function at a guest address.

    Raises JitError for instructions that this release's JIT lacks, callees out of reach, and jumps whose sizes do not
    converge.
    """
    pieces = translate(func, rules, boot)
    layout = Layout(pieces, rules)
    layout.settle()
    code = bytearray(pieces.prologue)
    extable: list[ExtableEntry] = []
    pokes: list[PokePlace] = []
    relocs: list[Reloc] = []
    offsets: list[int] = []
    for slot, piece in enumerate(pieces.items):
        start = len(code)
        offsets.append(start)
        if piece is None:
            continue
        code += piece.code
        code += layout.jumps[slot]
        for distance in piece.distances:
            relocs.append(Reloc(start + distance.offset, distance.target, distance.name))
        if piece.fault is not None:
            extable.append(ExtableEntry(start + piece.fault.offset, piece.fault.fixup, piece.fault.data))
        if piece.poke is not None:
            place = piece.poke
            end = start + place.target + 5
            pokes.append(PokePlace(place.poke, slot, start + place.bypass, start + place.target, end))
    offsets.append(len(code))
    for reloc in relocs:
        far = reloc.target - (address + reloc.offset + 4)
        # Addresses wrap: per-CPU offsets near 0 are reachable from code near the top.
        far = (far + (1 << 63)) % (1 << 64) - (1 << 63)
        if not -(1 << 31) <= far < 1 << 31:
            raise JitError(f"{reloc.target:#x} is out of reach of {address + reloc.offset:#x}")
        code[reloc.offset : reloc.offset + 4] = far.to_bytes(4, "little", signed=True)
    return JitImage(address, bytes(code), tuple(offsets), tuple(extable), tuple(pokes), tuple(relocs))
