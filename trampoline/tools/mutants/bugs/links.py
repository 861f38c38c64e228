"""Bugs of links: permitted attachments, and rollback of a failed attach."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import E2BIG, EBUSY, EINVAL
from typing import Any

from emu.kernel.errors import KernelError
from trampoline.designs.design import TrampolineDesign
from trampoline.kfunc_md.hash_64 import hash_64
from trampoline.lab.functions import KernelFunction
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import replace, wrap
from trampoline.tramp_links import TrampProgType, kind_of
from trampoline.update.bpf_trampoline import BpfTrampoline, Trampolines, TrampolineUpdate
from trampoline.update.target import LinkEntry, TraceTarget, TrampLink

_TRAMPOLINE = "trampoline.update.bpf_trampoline.BpfTrampoline"


def _add(
    *, counts: Callable[[TrampProgType], int], refuses_twice: bool = True
) -> Callable[[BpfTrampoline, TrampLink], int]:
    """``BpfTrampoline._add`` with another count of links, or without the check for duplicates."""

    def mutated(trampoline: BpfTrampoline, link: TrampLink) -> int:
        kind = kind_of(link.prog.attach_type, trampoline.target)
        if kind is TrampProgType.FSESSION and not trampoline._rules.fsession:
            raise KernelError(EINVAL, "no fsession programs")
        total = sum(counts(linked) for linked, _ in trampoline.links)
        if total + counts(kind) > trampoline._rules.max_links:
            raise KernelError(E2BIG, f"{trampoline.target.name} has {total} programs")
        if link.linked:
            raise KernelError(EBUSY, f"the link of {link.prog.name} is attached already")
        if refuses_twice and any(linked is kind and other.prog is link.prog for linked, other in trampoline.links):
            raise KernelError(EBUSY, f"{link.prog.name} is attached to {trampoline.target.name} already")
        trampoline.links.append((kind, link))
        link.linked = True
        return len(trampoline.links) - 1

    return mutated


def _new_unheld(trampolines: Trampolines, target: TraceTarget) -> BpfTrampoline:
    """``Trampolines._new`` without the module reference."""
    pool, kernel = trampolines._pool, trampolines._kernel
    mutex = pool[hash_64(target.key, (len(pool) - 1).bit_length())] if pool else trampolines._mutex_of(target)
    flavour, boot, sites, images = trampolines._rules, trampolines.boot, trampolines.sites, trampolines.images
    return BpfTrampoline(kernel, flavour, boot, sites, images, target, mutex)


def _put_unheld(trampolines: Trampolines, some: Sequence[BpfTrampoline]) -> None:
    for trampoline in some:
        trampoline.refcnt -= 1
        if trampoline.refcnt == 0:
            del trampolines._table[trampoline.target.key]


def _by_bare_name(find: Callable[[Any, str | int], KernelFunction]) -> Callable[[Any, str | int], KernelFunction]:
    def mutated(population: Any, where: str | int) -> KernelFunction:
        return find(population, where.rpartition(":")[2] if isinstance(where, str) else where)

    return mutated


def _once_only(attach: Callable[..., Any]) -> Callable[..., Any]:
    """The first attach takes the program's own target and does not restore it."""

    def mutated(lab: Any, prog: Any, *args: Any, **options: Any) -> Any:
        taken = vars(lab).setdefault("_dst_trampoline_taken", set())
        if prog.address in taken and not any(
            link.prog is prog for trampoline in lab.trampolines for _, link in trampoline.links
        ):
            raise KernelError(EINVAL, f"{prog.name} has no target any more")
        link = attach(lab, prog, *args, **options)
        taken.add(prog.address)
        return link

    return mutated


def _keeps_link(trampoline: BpfTrampoline, link: TrampLink, position: int, *, adding: bool) -> None:
    """``change_back`` that does nothing."""


def _keeps_flags(trampoline: BpfTrampoline, *, lock_direct_mutex: bool = True) -> TrampolineUpdate:
    """``switch`` that keeps the new flags after an error."""
    while (update := trampoline._try_switch(lock_direct_mutex)) is None:
        pass
    return update


@contextmanager
def _held_too_long(design: TrampolineDesign, entries: Sequence[LinkEntry]) -> Iterator[list[BpfTrampoline]]:
    """``TrampolineDesign._held`` that leaks its trampolines if attaching fails."""
    trampolines = design.trampolines.get(*[entry.target for entry in entries])
    design.trampolines.images.hold(entries)
    try:
        yield trampolines
    except BaseException:
        design.trampolines.images.release(entries)
        raise


MUTANTS = (
    Mutant(
        "limit-forgets-fmod-ret",
        "a2aa95b71c9b",
        "fmod_ret programs are not counted against the limit of links",
        replace(
            f"{_TRAMPOLINE}._add", _add(counts=lambda kind: 0 if kind is TrampProgType.MODIFY_RETURN else kind.weight)
        ),
    ),
    Mutant(
        "session-counts-once",
        "trampoline.c:__bpf_trampoline_link_prog()",
        "an fsession program, which is in two lists, counts as one link",
        replace(f"{_TRAMPOLINE}._add", _add(counts=lambda kind: 1)),
    ),
    Mutant(
        "double-attach",
        "trampoline.c:__bpf_trampoline_link_prog()",
        "a program may be attached to a function twice, and then runs twice: the recursion guard does not prevent that",
        replace(f"{_TRAMPOLINE}._add", _add(counts=lambda kind: kind.weight, refuses_twice=False)),
    ),
    Mutant(
        "module-not-held",
        "861de02e5f3f",
        "a trampoline does not hold its function's module, which can be unloaded while it is attached",
        (
            replace("trampoline.update.bpf_trampoline.Trampolines._new", _new_unheld),
            replace("trampoline.update.bpf_trampoline.Trampolines._put", _put_unheld),
        ),
    ),
    Mutant(
        "multi-module-not-held",
        "e22061b2d309",
        "a multi link does not hold the modules of its functions",
        replace("trampoline.lab.links.tracing_multi.modules_of", lambda entries: []),
    ),
    Mutant(
        "module-function-by-bare-name",
        "31bf1dbccfb0",
        "a module's function is looked up by its bare name: the kernel's function of that name is traced",
        wrap("trampoline.lab.functions.Population.find", _by_bare_name),
    ),
    Mutant(
        "no-second-attach",
        "f3a95075549e",
        "attaching clears the program's load-time target: after a detach it cannot be attached again",
        wrap("trampoline.lab.lab.Lab.attach", _once_only),
    ),
    Mutant(
        "link-stays-on-failure",
        "trampoline.c:__bpf_trampoline_link_prog()",
        "after a failed update the program stays in its list, or stays removed from it",
        replace(f"{_TRAMPOLINE}.change_back", _keeps_link),
    ),
    Mutant(
        "flags-stay-on-failure",
        "trampoline.c:bpf_trampoline_update()",
        "after a failed update the trampoline keeps the flags of the new image",
        replace(f"{_TRAMPOLINE}.switch", _keeps_flags),
    ),
    Mutant(
        "trampoline-leaked-on-failure",
        "syscall.c:bpf_tracing_prog_attach()",
        "the trampoline reference of the lookup is leaked if attaching fails",
        replace("trampoline.designs.design.TrampolineDesign._held", _held_too_long),
    ),
    Mutant(
        "noreturn-allowed",
        "cfe816d469dc",
        "fexit is allowed on functions that do not return, whose images then cannot be freed",
        replace("trampoline.lab.targets.Targets.check_returns", lambda lab, attach, target: None),
    ),
)
