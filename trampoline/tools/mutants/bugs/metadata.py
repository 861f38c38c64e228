"""The tracing-multi series of 2025: its own defects, one by one, and metadata that goes too early."""

from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from typing import Any

from emu.kernel.rcu import RcuFlavour
from trampoline.designs.tracing_multi import tracing_multi_v2
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.kfunc_md.hash_table import HashTable
from trampoline.kfunc_md.lifetime import Lifetimes
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import Patch, replace, replace_item, wrap

_FIXED = "tracing-multi-v2-fixed"
_LIFETIMES = "trampoline.kfunc_md.lifetime.Lifetimes"


def _with(**defects: bool) -> Patch:
    """The repaired series with some of its defects."""
    design = tracing_multi_v2(_FIXED, changed(TracingMultiDefects(), **defects))
    return replace_item("trampoline.designs.DESIGNS", _FIXED, design)


def _after_rcu_alone(lifetimes: Lifetimes, free: Callable[[], None]) -> None:
    lifetimes._kernel.rcu.call(RcuFlavour.RCU, free)


def _retire_uncounted(lifetimes: Lifetimes, mds: Sequence[int], nodes: Sequence[int] = ()) -> None:
    def free() -> None:
        for md in mds:
            lifetimes._exit(md)
        lifetimes._free_all(mds, nodes)

    if mds or nodes:
        lifetimes._after_grace_periods(free)


def _frees_at_once(resize: Callable[[HashTable, int], None]) -> Callable[[HashTable, int], None]:
    def mutated(table: HashTable, bits: int) -> None:
        old = table.table
        resize(table, bits)
        if table._draining == old:
            table._drained(old)

    return mutated


def _drains_once(drained: Callable[[HashTable, int], None]) -> Callable[[HashTable, int], None]:
    """Not once more after the grace period, when another table may be there."""

    def mutated(table: HashTable, old: int) -> None:
        if table._draining == old:
            drained(table, old)

    return mutated


def _forgets_origin(take_off: Callable[..., None]) -> Callable[..., None]:
    def mutated(mds: Any, md: int, linked: Any, content: Any) -> None:
        take_off(mds, md, linked, content)
        content.bpf_origin_call = bool(content.programs[1])

    return mutated


MUTANTS = (
    Mutant(
        "seed-null-look-up",
        "§4.8 1",
        "a look-up that finds nothing is not checked: the field of a structure at address 0 is read",
        _with(null_result=True),
    ),
    Mutant(
        "seed-resize-copies",
        "§4.8 2",
        "a resize copies metadata: a call under way keeps the old, from which nobody unlinks programs",
        _with(resize_copies=True),
    ),
    Mutant(
        "seed-livepatch-confused",
        "§4.8 4",
        "livepatch asks a global trampoline through the function for a bpf_trampoline",
        _with(confused_ops_func=True),
    ),
    Mutant(
        "seed-unlink-stops",
        "§4.8 5",
        "unlinking stops at the first function without the program: the rest stays linked, nothing is put",
        _with(unlink_stops=True),
    ),
    Mutant(
        "seed-unlink-walks-all",
        "§4.8 6",
        "a link that fails is taken back on functions that it had not come to",
        _with(unlink_walks_all=True),
    ),
    Mutant(
        "seed-counters-wrap",
        "§4.8 7",
        "there is no limit on the programs of a function, whose 8-bit count wraps",
        _with(narrow_counters=True),
    ),
    Mutant(
        "seed-no-clobbers",
        "§4.8 9",
        "the call of a program declares no clobbers: what the compiler kept in registers is lost",
        _with(no_clobbers=True),
    ),
    Mutant(
        "seed-failed-reset-keeps",
        "§4.8 10",
        "sites that could not be patched stay in direct_functions",
        _with(failed_reset_keeps=True),
    ),
    Mutant(
        "seed-as-posted",
        "§4.8",
        "the series as it was posted: all of these",
        replace_item("trampoline.designs.DESIGNS", _FIXED, tracing_multi_v2(_FIXED)),
    ),
    Mutant(
        "metadata-not-counted",
        "§4.3 1; B1",
        "metadata is freed under a caller whose original sleeps: its reference is not waited for",
        replace(f"{_LIFETIMES}.retire", _retire_uncounted),
    ),
    Mutant(
        "nodes-freed-after-rcu",
        "§4.3",
        "list nodes wait for RCU alone, not for sleepable programs that sleep",
        replace(f"{_LIFETIMES}._after_grace_periods", _after_rcu_alone),
    ),
    Mutant(
        "table-freed-at-once",
        "§4.2",
        "the table that a resize replaces is freed under those who look up in it",
        (
            wrap("trampoline.kfunc_md.hash_table.HashTable._resize_relinking", _frees_at_once),
            wrap("trampoline.kfunc_md.hash_table.HashTable._drained", _drains_once),
        ),
    ),
    Mutant(
        "origin-call-forgotten",
        "§4.4",
        "after an unlink only fexit programs are looked at: fmod_ret programs that stay do not run",
        wrap("trampoline.kfunc_md.kfunc_mds.KfuncMds._take_off", _forgets_origin),
    ),
)
