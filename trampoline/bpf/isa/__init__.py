"""eBPF programs: instructions as values, as bytes and as text."""

from trampoline.bpf.isa.codec import decode, encode
from trampoline.bpf.isa.forms import fault
from trampoline.bpf.isa.insn import Insn, places
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.isa.text import format_insn, format_program

__all__ = ["Insn", "decode", "encode", "fault", "format_insn", "format_program", "parse", "places"]
