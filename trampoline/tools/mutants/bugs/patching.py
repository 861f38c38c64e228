"""Bugs of text patching while other CPUs execute the text."""

from collections.abc import Callable, Sequence
from typing import Any

from asm.encodings import INT3
from emu.events import PokePhase
from emu.kernel.ftrace.records import SiteChange
from emu.kernel.text.text_poke import VECTOR_SIZE, TextPoke, TextPokeLoc
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import replace, wrap

_TEXT_POKE = "emu.kernel.text.text_poke.TextPoke"


def _finish(order: Sequence[PokePhase]) -> Callable[[TextPoke], None]:
    """``batch_finish`` with these phases, in this order."""

    def mutated(poke: TextPoke) -> None:
        batch = poke._live = poke._queue
        poke._queue = []
        parts = {
            PokePhase.INT3: ([loc.address for loc in batch], [INT3] * len(batch)),
            PokePhase.TAIL: ([loc.address + 1 for loc in batch], [loc.text[1:] for loc in batch]),
            PokePhase.FIRST_BYTE: ([loc.address for loc in batch], [loc.text[:1] for loc in batch]),
        }
        try:
            for phase in order:
                poke._phase(phase, *parts[phase])
        finally:
            poke._live = []

    return mutated


def _unsynchronised(which: PokePhase) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Write one phase without the IPIs that serialise the other CPUs."""

    def make(write: Callable[..., None]) -> Callable[..., None]:
        def mutated(poke: Any, phase: PokePhase, addresses: list[int], texts: list[bytes]) -> None:
            if phase is not which:
                write(poke, phase, addresses, texts)
                return
            poke._sync_core = lambda: None
            try:
                write(poke, phase, addresses, texts)
            finally:
                del poke._sync_core

        return mutated

    return make


def _add_anywhere(poke: TextPoke, address: int, text: bytes, emulate: bytes | None = None) -> None:
    """``batch_add`` without the check against the address before."""
    if len(poke._queue) == VECTOR_SIZE:
        poke.batch_finish()
    poke._queue.append(TextPokeLoc(address, text, emulate or text))


def _as_they_come(retarget: Callable[..., SiteChange]) -> Callable[..., SiteChange]:
    """The sites of a change, not sorted by address."""

    def mutated(*args: Any, **options: Any) -> SiteChange:
        change = retarget(*args, **options)
        return SiteChange(change.touched, dict(reversed(change.todo.items())))

    return mutated


MUTANTS = (
    Mutant(
        "no-int3-phase",
        "alternative.c:text_poke_bp_batch()",
        "tail and first byte are written without an int3 before",
        replace(f"{_TEXT_POKE}.batch_finish", _finish([PokePhase.TAIL, PokePhase.FIRST_BYTE])),
    ),
    Mutant(
        "tail-patched-first",
        "alternative.c:text_poke_bp_batch()",
        "the tail is written before the int3",
        replace(f"{_TEXT_POKE}.batch_finish", _finish([PokePhase.TAIL, PokePhase.INT3, PokePhase.FIRST_BYTE])),
    ),
    Mutant(
        "no-sync-after-int3",
        "alternative.c:text_poke_bp_batch()",
        "the tail is written while CPUs may still decode the old first byte",
        wrap(f"{_TEXT_POKE}._phase", _unsynchronised(PokePhase.INT3)),
    ),
    Mutant(
        "no-sync-at-the-end",
        "alternative.c:text_poke_bp_batch()",
        "the batch is released while CPUs may still hit its int3, which the handler then rejects",
        wrap(f"{_TEXT_POKE}._phase", _unsynchronised(PokePhase.FIRST_BYTE)),
    ),
    Mutant(
        "batch-not-sorted",
        "2aebf5ee43bf",
        "a batch is filled out of order without a flush: the int3 handler's binary search misses sites",
        (
            replace(f"{_TEXT_POKE}.batch_add", _add_anywhere),
            wrap("emu.kernel.ftrace.records.FtraceRecords.retarget", _as_they_come),
        ),
    ),
)
