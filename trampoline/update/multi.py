"""Multi links: one program on many functions (``tracing_multi`` links, merged in 2026).

Trampolines stay one per function. With one ftrace_ops for all (``SingleOps``) a batch is one ftrace update; otherwise
functions are attached one by one, which is what mass attachment was slow by. Either way all or nothing.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from errno import EAGAIN, EINVAL
from typing import NamedTuple

from trampoline.bpf.errors import KernelError
from trampoline.update.bpf_trampoline import BpfTrampoline
from trampoline.update.ftrace_sites import SingleOps, SiteBatch
from trampoline.update.target import TraceTarget, TrampLink


class MultiEntry(NamedTuple):
    """One function of a multi link: its trampoline, and the program's place in it."""

    trampoline: BpfTrampoline
    link: TrampLink


@contextmanager
def no_collections() -> Iterator[None]:
    """Around what makes thousands of objects that stay: Python's garbage collector would look at each of them, and at
    the whole kernel, again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def attach_multi(sites: object, entries: Sequence[MultiEntry], progress: Callable[[], object]) -> None:
    """``bpf_trampoline_multi_attach``: put every link into its trampoline, or none.

    ``progress`` is called once for each function. Raises what linking and patching raise; then every list, image and
    site is as it was.
    """
    _change(sites, entries, progress, adding=True)


def detach_multi(sites: object, entries: Sequence[MultiEntry], progress: Callable[[], object]) -> None:
    """``bpf_trampoline_multi_detach``: take every link out, or none where updating fails."""
    _change(sites, entries, progress, adding=False)


def _change(sites: object, entries: Sequence[MultiEntry], progress: Callable[[], object], *, adding: bool) -> None:
    if not entries:
        return
    if isinstance(sites, SingleOps) and all(entry.trampoline.site for entry in entries):
        _change_batched(sites, entries, progress, adding=adding)
    else:
        _change_one_by_one(entries, progress, adding=adding)


def _change_one_by_one(entries: Sequence[MultiEntry], progress: Callable[[], object], *, adding: bool) -> None:
    """Site after site; what they reached before is kept until the last is patched, so that going back makes nothing
    new.
    """
    with ExitStack() as stack:
        updates = []
        with ExitStack() as undo:
            for entry in entries:
                trampoline = entry.trampoline
                stack.enter_context(trampoline.mutex)
                stack.enter_context(trampoline.changed(entry.link, adding=adding))
                before = trampoline.flags
                update = trampoline.switch()
                undo.callback(trampoline.switch_back, update, before)
                updates.append((trampoline, update))
                progress()
            undo.pop_all()
        for trampoline, update in updates:
            trampoline.finish(update)


def _change_batched(
    sites: SingleOps, entries: Sequence[MultiEntry], progress: Callable[[], object], *, adding: bool
) -> None:
    """All trampolines are locked, changed in their lists, generated, and patched as one."""
    trampolines = [entry.trampoline for entry in entries]
    with _all_locked(trampolines):
        flags = [trampoline.flags for trampoline in trampolines]
        changed: list[int] = []
        try:
            for trampoline, link in entries:
                changed.append(trampoline.change(link, adding=adding))
            while not _try_update(sites, trampolines, progress):
                pass
        except BaseException:
            for (trampoline, link), before, position in zip(entries, flags, changed, strict=False):
                trampoline.flags = before
                trampoline.change_back(link, position, adding=adding)
            raise


@contextmanager
def _all_locked(trampolines: Sequence[BpfTrampoline]) -> Iterator[None]:
    """``trampoline_lock_all``: trampolines may share a mutex of the pool."""
    with ExitStack() as locked:
        for mutex in dict.fromkeys(trampoline.mutex for trampoline in trampolines):
            locked.enter_context(mutex)
        yield


def remake(sites: object, trampolines: Sequence[BpfTrampoline]) -> None:
    """Make the images of trampolines anew, all or none, since something changed that they depend on."""
    mine = [trampoline for trampoline in trampolines if trampoline.site]
    if not mine:
        return
    assert isinstance(sites, SingleOps), "designs whose images depend on more than their programs patch in batches"
    with _all_locked(mine):
        while not _try_update(sites, mine, lambda: None):
            pass


def _try_update(sites: SingleOps, trampolines: Sequence[BpfTrampoline], progress: Callable[[], object]) -> bool:
    """One attempt at all of them; False where livepatch shares a site and its image is to be made anew."""
    updates = []
    batch = SiteBatch()
    try:
        for trampoline in trampolines:
            update = trampoline.prepare()
            updates.append(update)
            old, new, _ = update
            if new is not None:
                (batch.modified if old else batch.added)[trampoline.site] = trampoline.direct(new)
            elif old is not None:
                batch.removed[trampoline.site] = trampoline.direct(old)
            progress()
    except BaseException:
        for trampoline, update in zip(trampolines, updates, strict=False):
            trampoline.abandon(update, seen=False)
        raise
    trampolines[0].write_images()
    try:
        sites.apply(batch, {trampoline.site: trampoline for trampoline in trampolines})
    except BaseException as error:
        for trampoline, update in zip(trampolines, updates, strict=True):
            trampoline.abandon(update, seen=True)
        if isinstance(error, KernelError) and error.errno == EAGAIN:
            return False
        raise
    with sites.sharing_grace_periods():
        for trampoline, update in zip(trampolines, updates, strict=True):
            trampoline.finish(update)
    return True


def check_distinct(targets: Sequence[TraceTarget]) -> None:
    """-EINVAL for a function that is there twice, however it was named."""
    names = {target.key: target.name for target in targets}
    if len(names) != len(targets):
        twice = next(names[key] for key, count in Counter(target.key for target in targets).items() if count > 1)
        raise KernelError(EINVAL, f"{twice} is given twice")
