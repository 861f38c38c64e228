"""Multi links: one program on many functions (``tracing_multi`` links, merged in 2026).

Trampolines stay one per function. Where sites are changed in batches (``SiteBatches``) a batch is one ftrace update;
otherwise functions are attached one by one, which is what mass attachment was slow by. Either way all or nothing.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from errno import EAGAIN, EINVAL

from trampoline.bpf.errors import KernelError
from trampoline.update.bpf_trampoline import BpfTrampoline
from trampoline.update.ftrace_sites import SiteBatch, SiteBatches
from trampoline.update.target import TraceTarget, TrampLink


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


Joined = tuple[BpfTrampoline, TrampLink]
"""One function of a multi link: its trampoline, and the program's place in it."""


def attach_multi(joined: Sequence[Joined], progress: Callable[[], object]) -> None:
    """``bpf_trampoline_multi_attach``: put every link into its trampoline, or none.

    ``progress`` is called once for each function. Raises what linking and patching raise; then every list, image and
    site is as it was.
    """
    _change(joined, progress, adding=True)


def detach_multi(joined: Sequence[Joined], progress: Callable[[], object]) -> None:
    """``bpf_trampoline_multi_detach``: take every link out, or none where updating fails."""
    _change(joined, progress, adding=False)


def _change(joined: Sequence[Joined], progress: Callable[[], object], *, adding: bool) -> None:
    if not joined:
        return
    batches = joined[0][0].sites.batches
    if batches is not None and all(trampoline.site for trampoline, _ in joined):
        _change_batched(batches, joined, progress, adding=adding)
    else:
        _change_one_by_one(joined, progress, adding=adding)


def _change_one_by_one(joined: Sequence[Joined], progress: Callable[[], object], *, adding: bool) -> None:
    """Site after site; what they reached before is kept until the last is patched, so that going back makes nothing
    new.
    """
    with ExitStack() as stack:
        updates = []
        with ExitStack() as undo:
            for trampoline, link in joined:
                stack.enter_context(trampoline.mutex)
                stack.enter_context(trampoline.changed(link, adding=adding))
                before = trampoline.flags
                update = trampoline.switch()
                undo.callback(trampoline.switch_back, update, before)
                updates.append((trampoline, update))
                progress()
            undo.pop_all()
        for trampoline, update in updates:
            trampoline.finish(update)


def _change_batched(
    batches: SiteBatches, joined: Sequence[Joined], progress: Callable[[], object], *, adding: bool
) -> None:
    """All trampolines are locked, changed in their lists, generated, and patched as one."""
    trampolines = [trampoline for trampoline, _ in joined]
    with _all_locked(trampolines):
        flags = [trampoline.flags for trampoline in trampolines]
        changed: list[int] = []
        try:
            for trampoline, link in joined:
                changed.append(trampoline.change(link, adding=adding))
            while not _try_update(batches, trampolines, progress):
                pass
        except BaseException:
            for (trampoline, link), before, position in zip(joined, flags, changed, strict=False):
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


def remake(trampolines: Sequence[BpfTrampoline]) -> None:
    """Make the images of trampolines anew, all or none, since something changed that they depend on."""
    mine = [trampoline for trampoline in trampolines if trampoline.site]
    if not mine:
        return
    batches = mine[0].sites.batches
    assert batches is not None, "designs whose images depend on more than their programs patch in batches"
    with _all_locked(mine):
        while not _try_update(batches, mine, lambda: None):
            pass


def _try_update(batches: SiteBatches, trampolines: Sequence[BpfTrampoline], progress: Callable[[], object]) -> bool:
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
        batches.apply(batch, {trampoline.site: trampoline for trampoline in trampolines})
    except BaseException as error:
        for trampoline, update in zip(trampolines, updates, strict=True):
            trampoline.abandon(update, seen=True)
        if isinstance(error, KernelError) and error.errno == EAGAIN:
            return False
        raise
    with trampolines[0].sharing_grace_periods():
        for trampoline, update in zip(trampolines, updates, strict=True):
            trampoline.finish(update)
    return True


def check_distinct(targets: Sequence[TraceTarget]) -> None:
    """-EINVAL for a function that is there twice, however it was named."""
    names = {target.key: target.name for target in targets}
    if len(names) != len(targets):
        twice = next(names[key] for key, count in Counter(target.key for target in targets).items() if count > 1)
        raise KernelError(EINVAL, f"{twice} is given twice")
