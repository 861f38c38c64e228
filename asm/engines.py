"""The two engines, one of each for a thread, made when they are first needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
    """This thread's encoder. Whether it reads 10 as ten or as sixteen is not certain: numbers go to it as 0xa."""
    engine = _engines.keystone
    if engine is None:
        from keystone import KS_ARCH_X86, KS_MODE_64, Ks

        engine = _engines.keystone = Ks(KS_ARCH_X86, KS_MODE_64)
    return engine


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
