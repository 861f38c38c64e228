"""The two engines, one of each for a thread, made when they are first needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from asm.errors import AsmError

if TYPE_CHECKING:
    from capstone import Cs
    from keystone import Ks


class _Engines(threading.local):
    # Keystone crashes when two threads share an engine.
    keystone: Ks | None = None
    capstone: Cs | None = None
    detailed: Cs | None = None


_engines = _Engines()


def keystone() -> Ks:
    """This thread's encoder. Raises AsmError if it does not read numbers as it should."""
    engine = _engines.keystone
    if engine is None:
        from keystone import KS_ARCH_X86, KS_MODE_64, Ks

        engine = Ks(KS_ARCH_X86, KS_MODE_64)
        check_numbers(engine)
        _engines.keystone = engine
    return engine


def check_numbers(engine: Ks) -> None:
    """AsmError unless decimal is decimal and hexadecimal hexadecimal.

    Setting `.syntax` or `.sym_resolver` on any engine of the process can turn decimal numbers into hexadecimal ones.
    """
    for text, want in (("mov eax, 10", "b80a000000"), ("mov eax, 0x10", "b810000000")):
        code, _ = engine.asm(text, 0, as_bytes=True)
        if code is None or code.hex() != want:
            got = code.hex() if code else "nothing"
            raise AsmError(f"this process's Keystone encodes '{text}' as {got}, not {want}")


def capstone() -> Cs:
    """This thread's quick disassembler: text only."""
    engine = _engines.capstone
    if engine is None:
        from capstone import CS_ARCH_X86, CS_MODE_64, Cs

        engine = _engines.capstone = Cs(CS_ARCH_X86, CS_MODE_64)
    return engine


def detailed_capstone() -> Cs:
    """This thread's disassembler that gives operands and encodings."""
    engine = _engines.detailed
    if engine is None:
        from capstone import CS_ARCH_X86, CS_MODE_64, Cs

        engine = _engines.detailed = Cs(CS_ARCH_X86, CS_MODE_64)
        engine.detail = True
    return engine
