"""A BPF program and its maps as passed to BPF_PROG_LOAD and BPF_MAP_CREATE."""

from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.isa.insn import Insn
from trampoline.bpf.uapi import AttachType, MapType, ProgFlag, ProgType


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map to create. Sizes in bytes."""

    name: str
    type: MapType
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    initial: bytes = b""
    """First value of a map of global data (an array of one element)."""
    inner: "MapSpec | None" = None
    readonly: bool = False
    """Frozen, and BPF_F_RDONLY_PROG: ``.rodata``."""
    key_type: int = 0
    value_type: int = 0
    """BTF type ids in the object's BTF; 0: none."""
    extra: int = 0
    """``map_extra``: a parameter of some map types."""


@dataclass(frozen=True, slots=True)
class FuncInfo:
    """``struct bpf_func_info``: the type of the function that starts at a slot."""

    slot: int
    type_id: int


@dataclass(frozen=True, slots=True)
class LineInfo:
    """``struct bpf_line_info``: the source line of the instructions from a slot on."""

    slot: int
    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class BpfProgram:
    """Arguments of BPF_PROG_LOAD.

    In LD_IMM64 with source MAP_FD or MAP_VALUE the low half of ``imm`` is an index into ``maps``; MAP_VALUE's high half
    is the offset in its value, in bytes.
    """

    name: str
    insns: tuple[Insn, ...]
    prog_type: ProgType | int
    attach: AttachType | int = AttachType.NONE
    license: str = "GPL"
    flags: int = 0
    """``ProgFlag`` values, or others that a kernel refuses."""
    attach_btf_id: int = 0
    attach_prog: "BpfProgram | None" = None
    """Program whose function ``attach_btf_id`` is a target (``attach_prog_fd``)."""
    maps: tuple[MapSpec, ...] = ()
    btf: Btf | None = None
    funcs: tuple[FuncInfo, ...] = ()
    lines: tuple[LineInfo, ...] = ()
    section: str = ""
    target: str = ""
    """Target from the section's name (``vfs_read`` of ``fentry/vfs_read``)."""
    missing: tuple[tuple[int, str], ...] = ()
    """By slot: kernel types or fields that CO-RE did not find; the verifier rejects a program that can reach the slot.
    """

    @property
    def sleepable(self) -> bool:
        """True if the program requests permission to sleep (BPF_F_SLEEPABLE)."""
        return bool(self.flags & ProgFlag.SLEEPABLE)

    def place(self, slot: int | None) -> str:
        """Location of an instruction for messages: program name, slot, and the source line if known."""
        if slot is None:
            return self.name
        line = next((line for line in reversed(self.lines) if line.slot <= slot), None)
        source = f" ({line}: {line.text.strip()})" if line else ""
        lacks = "".join(f": the kernel has no {what}" for at, what in self.missing if at == slot)
        return f"{self.name}, slot {slot}{source}{lacks}"
