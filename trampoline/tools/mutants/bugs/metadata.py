"""Bugs of metadata: the defects of tracing-multi v2 one by one, and metadata freed too early."""

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
    """Drain once, without the second check after the grace period, when the table may have changed."""

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
        "tracing-multi v2",
        "a failed lookup is not checked: a field of a structure at address 0 is read",
        _with(null_result=True),
    ),
    Mutant(
        "seed-resize-copies",
        "tracing-multi v2",
        "a resize copies metadata: a call in flight keeps the old copy, from which programs are not unlinked",
        _with(resize_copies=True),
    ),
    Mutant(
        "seed-livepatch-confused",
        "tracing-multi v2",
        "livepatch treats a global trampoline as a bpf_trampoline",
        _with(confused_ops_func=True),
    ),
    Mutant(
        "seed-unlink-stops",
        "tracing-multi v2",
        "unlinking stops at the first function without the program: the rest stays linked, and references leak",
        _with(unlink_stops=True),
    ),
    Mutant(
        "seed-unlink-walks-all",
        "tracing-multi v2",
        "a failed link is rolled back on functions that it had not reached",
        _with(unlink_walks_all=True),
    ),
    Mutant(
        "seed-counters-wrap",
        "tracing-multi v2",
        "the number of programs on a function is not limited, and its 8-bit counter wraps",
        _with(narrow_counters=True),
    ),
    Mutant(
        "seed-no-clobbers",
        "tracing-multi v2",
        "the call of a program declares no clobbers: values that the compiler kept in registers are lost",
        _with(no_clobbers=True),
    ),
    Mutant(
        "seed-failed-reset-keeps",
        "tracing-multi v2",
        "sites that could not be patched stay in direct_functions",
        _with(failed_reset_keeps=True),
    ),
    Mutant(
        "seed-as-posted",
        "tracing-multi v2",
        "the series as it was posted, with all of these defects",
        replace_item("trampoline.designs.DESIGNS", _FIXED, tracing_multi_v2(_FIXED)),
    ),
    Mutant(
        "metadata-not-counted",
        "as e21aa341785c",
        "metadata is freed without waiting for its reference, under a caller whose original sleeps",
        replace(f"{_LIFETIMES}.retire", _retire_uncounted),
    ),
    Mutant(
        "nodes-freed-after-rcu",
        "tracing-multi v2, kfunc_md_tramp_prog",
        "list nodes wait for RCU only, not for sleeping sleepable programs",
        replace(f"{_LIFETIMES}._after_grace_periods", _after_rcu_alone),
    ),
    Mutant(
        "table-freed-at-once",
        "tracing-multi v2, resize of the hash",
        "the table that a resize replaces is freed while readers still use it",
        (
            wrap("trampoline.kfunc_md.hash_table.HashTable._resize_relinking", _frees_at_once),
            wrap("trampoline.kfunc_md.hash_table.HashTable._drained", _drains_once),
        ),
    ),
    Mutant(
        "origin-call-forgotten",
        "tracing-multi v2, bpf_origin_call",
        "an unlink recomputes bpf_origin_call from fexit programs only: the remaining fmod_ret programs do not run",
        wrap("trampoline.kfunc_md.kfunc_mds.KfuncMds._take_off", _forgets_origin),
    ),
)
