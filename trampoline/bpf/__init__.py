"""eBPF programs: instructions as values, as bytes and as text."""

from trampoline.bpf.codec import decode, encode
from trampoline.bpf.forms import fault
from trampoline.bpf.insn import Insn, places
from trampoline.bpf.parse import parse
from trampoline.bpf.text import format_insn, format_program

__all__ = ["Insn", "decode", "encode", "fault", "format_insn", "format_program", "parse", "places"]
