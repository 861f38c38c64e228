"""``struct bpf_trampoline``: the programs on one function, and the image that runs them (kernel/bpf/trampoline.c).

``bpf_trampoline_link_prog``, ``_unlink_prog`` and ``_update`` with the kernel's order, limits and error codes.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from errno import E2BIG, EAGAIN, EBUSY, EINVAL
from typing import NamedTuple

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsCmd
from emu.kernel.ftrace.records import ftrace_jmp_set
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import Lock, PointKind
from trampoline.bpf.boot import Boot
from trampoline.image.generator import ProgCall, TrampFlag, TrampLinks
from trampoline.kfunc_md.hash_64 import hash_64
from trampoline.rules import TrampolineRules
from trampoline.text_poke import BpfTextPokeType, bpf_arch_text_poke
from trampoline.tramp_links import TrampProgType, enter_exit, flags_of, kind_of, links_of
from trampoline.update.ftrace_sites import DirectSites
from trampoline.update.image_source import ImageSource, SiteImage
from trampoline.update.target import TraceTarget, TrampLink

KSYM_PREFIX = "bpf_trampoline_"
"""An image's symbol is this and the key of its trampoline (``bpf_trampoline_ksym_add``)."""
_POOL_BITS = 5
"""32 mutexes for all trampolines (2026)."""


class BpfTrampoline:
    """The trampoline of one target."""

    __slots__ = (
        "_images",
        "_kernel",
        "_rules",
        "boot",
        "cur_image",
        "flags",
        "links",
        "mutex",
        "refcnt",
        "site",
        "sites",
        "target",
    )

    def __init__(
        self,
        kernel: Kernel,
        rules: TrampolineRules,
        boot: Boot,
        sites: DirectSites,
        images: ImageSource,
        target: TraceTarget,
        mutex: Lock,
    ) -> None:
        self._kernel, self._rules, self.boot = kernel, rules, boot
        self.sites, self._images = sites, images
        self.target = target
        self.site = site_of(kernel, target)
        """The ftrace location of the target; 0 where it is patched directly (``func.ftrace_managed``)."""
        self.refcnt = 0
        self.mutex = mutex
        self.links: list[tuple[TrampProgType, TrampLink]] = []
        """In attach order."""
        self.flags = TrampFlag(0)
        self.cur_image: SiteImage | None = None

    def link_prog(self, link: TrampLink) -> None:
        """``__bpf_trampoline_link_prog``. On any error the list, the image and the site are as before.

        KernelError: -E2BIG beyond the limit of links, -EBUSY for a link or a program that is there already, and what
        updating raises.
        """
        self._relink(link, adding=True)

    def unlink_prog(self, link: TrampLink) -> None:
        """``__bpf_trampoline_unlink_prog``. If updating fails, the link stays."""
        self._relink(link, adding=False)

    def _relink(self, link: TrampLink, *, adding: bool) -> None:
        with self.mutex, self.changed(link, adding=adding):
            update = self.switch()
            with self.sharing_grace_periods():
                self.finish(update)

    @contextmanager
    def changed(self, link: TrampLink, *, adding: bool) -> Iterator[None]:
        """Within the block a program is in its list, or no longer; as before if the block raises; ``mutex`` is held."""
        position = self.change(link, adding=adding)
        try:
            yield
        except BaseException:
            self.change_back(link, position, adding=adding)
            raise

    def change(self, link: TrampLink, *, adding: bool) -> int:
        """Put a program into its list, or take it out, while ``mutex`` is held; its place there, for ``change_back``.

        KernelError as ``link_prog``.
        """
        return self._add(link) if adding else self._remove(link)

    def change_back(self, link: TrampLink, position: int, *, adding: bool) -> None:
        """Undo ``change``."""
        if adding:
            del self.links[position]
        else:
            self.links.insert(position, (kind_of(link.prog.attach_type, self.target), link))
        link.linked = not adding

    def _add(self, link: TrampLink) -> int:
        kind = kind_of(link.prog.attach_type, self.target)
        if kind is TrampProgType.FSESSION and not self._rules.fsession:
            raise KernelError(EINVAL, "this kernel has no fsession programs")
        total = sum([linked.weight for linked, _ in self.links])
        if total + kind.weight > self._rules.max_links:
            raise KernelError(
                E2BIG, f"{self.target.name} has {total} programs; this kernel takes {self._rules.max_links}"
            )
        if link.linked:
            raise KernelError(EBUSY, f"the link of {link.prog.name} is attached already")
        for linked, other in self.links:
            if linked is kind and other.prog is link.prog:
                raise KernelError(EBUSY, f"{link.prog.name} is attached to {self.target.name} already")
        self.links.append((kind, link))
        link.linked = True
        return len(self.links) - 1

    def _remove(self, link: TrampLink) -> int:
        position = [linked for _, linked in self.links].index(link)
        del self.links[position]
        link.linked = False
        return position

    def write_images(self) -> None:
        """The images of this trampoline, and of all others that were prepared, are about to be reached."""
        self._images.write()

    def sharing_grace_periods(self) -> AbstractContextManager[None]:
        """A block around ``finish``: what is no longer needed shares grace periods."""
        return self._kernel.rcu.sharing()

    @property
    def tramp_links(self) -> TrampLinks:
        """The programs as the generator takes them, in the order in which they run."""
        return links_of((kind, self._call(kind, link)) for kind, link in self.links)

    def _call(self, kind: TrampProgType, link: TrampLink) -> ProgCall:
        prog = link.prog
        enter, leave = enter_exit(prog.attach_type, sleepable=prog.sleepable)
        session = kind is TrampProgType.FSESSION
        return ProgCall(
            prog.name,
            prog.address,
            prog.bpf_func,
            link.cookie,
            enter,
            leave,
            is_session=session,
            session_cookie=session and prog.uses.session_cookie,
        )

    def share_ipmodify(self, ops: FtraceOps, ip: int, cmd: FtraceOpsCmd) -> None:
        """``bpf_tramp_ftrace_ops_func``: a livepatch of the target came or goes.

        The original is called where livepatch wants it (ORIG_STACK) while they share the site. -EAGAIN where the image
        must be made anew first, or where the trampoline is busy.
        """
        shared = self.flags | TrampFlag.SHARE_IPMODIFY
        if cmd is FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_SELF:
            # From within _update(), which holds the mutex and tries again.
            if self._images.is_outdated(self.flags, shared):
                self.flags = shared
                raise KernelError(EAGAIN, f"the trampoline of {self.target.name} must be made anew for livepatch")
            return
        # ftrace holds direct_mutex, which comes after the trampoline's.
        if not self.mutex.try_acquire():
            self._kernel.process.point(PointKind.LOCK, f"msleep(1) for {self.mutex.name}")
            self._kernel.rcu.now_ns += 1_000_000
            raise KernelError(EAGAIN, f"the trampoline of {self.target.name} is busy")
        try:
            before = self.flags
            if cmd is FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_PEER:
                self.flags = shared
            else:
                self.flags &= ~TrampFlag.SHARE_IPMODIFY
            if self._images.is_outdated(before, self.flags):
                try:
                    self._update(lock_direct_mutex=False)
                except BaseException:
                    self.flags = before
                    raise
        finally:
            self.mutex.release()

    def _update(self, *, lock_direct_mutex: bool = True) -> None:
        """``bpf_trampoline_update``: a new image for the programs as they are now, or none; on error everything is
        as it was. ``lock_direct_mutex``: False where it is held.
        """
        self.finish(self.switch(lock_direct_mutex=lock_direct_mutex))

    def switch(self, *, lock_direct_mutex: bool = True) -> "TrampolineUpdate":
        """Let the site reach a new image for the programs as they are now; ``finish`` or ``switch_back`` is due."""
        before = self.flags
        try:
            while (update := self._try_switch(lock_direct_mutex)) is None:
                pass
        except BaseException:
            self.flags = before
            raise
        return update

    def _try_switch(self, lock_direct_mutex: bool) -> "TrampolineUpdate | None":
        """One attempt; None where livepatch shares the site and a new one is due (00963a2e75a8)."""
        update = self.prepare()
        try:
            self._apply(update, lock_direct_mutex)
        except BaseException as error:
            again = isinstance(error, KernelError) and error.errno == EAGAIN
            self.abandon(update, seen=not again)
            if again:
                return None
            raise
        return update

    def switch_back(self, update: "TrampolineUpdate", flags: TrampFlag) -> None:
        """Let the site reach what it reached before ``switch``; ``flags`` are those of then."""
        self._apply(TrampolineUpdate(update.new, update.old, flags), lock_direct_mutex=True)
        self.flags = flags
        self.abandon(update, seen=True)

    def prepare(self) -> "TrampolineUpdate":
        """What the programs as they are now need: a new image, or none; its site is not touched yet."""
        old = self.cur_image
        if not self.links:
            return TrampolineUpdate(old, None, self.flags & TrampFlag.SHARE_IPMODIFY)
        kept = self.flags
        if self.target.tail_call_reachable:
            kept |= TrampFlag.TAIL_CALL_CTX
        calls_original = uses_func_ip = False
        for kind, link in self.links:
            calls_original |= kind is not TrampProgType.FENTRY
            uses_func_ip |= link.prog.uses.func_ip
        flags = flags_of(self._rules, calls_original=calls_original, uses_func_ip=uses_func_ip, kept=kept)
        image = self._images.make(self, flags)
        # Livepatch asks for them while the site is changed.
        self.flags = flags
        return TrampolineUpdate(old, image, flags)

    def finish(self, update: "TrampolineUpdate") -> None:
        """The site reaches the new image: release the old one."""
        self.cur_image, self.flags = update.new, update.flags
        if update.old is not None:
            update.old.put()

    def abandon(self, update: "TrampolineUpdate", *, seen: bool) -> None:
        """The site was not changed: give up the new image; where it was ``seen``, another CPU may be in it."""
        if update.new is None:
            return
        if seen:
            update.new.put()
        else:
            update.new.discard()

    def _apply(self, update: "TrampolineUpdate", lock_direct_mutex: bool) -> None:
        old, new, site = update.old, update.new, self.site
        self._images.write()
        if not site:
            self._poke(old, new)
        elif new is None:
            if old is not None:
                self.sites.unregister(self, site, self.direct(old))
        elif old is None:
            self.sites.register(self, site, self.direct(new))
        else:
            self.sites.modify(self, site, self.direct(new), lock_direct_mutex=lock_direct_mutex)

    def direct(self, image: SiteImage) -> int:
        """The address by which the site reaches an image, as ftrace takes it."""
        return ftrace_jmp_set(image.image) if image.by_jmp else image.image

    def _poke(self, old: SiteImage | None, new: SiteImage | None) -> None:
        def kind(image: SiteImage | None) -> BpfTextPokeType:
            if image is None:
                return BpfTextPokeType.BPF_MOD_NOP
            return BpfTextPokeType.BPF_MOD_JUMP if image.by_jmp else BpfTextPokeType.BPF_MOD_CALL

        was, becomes = (None if image is None else image.image for image in (old, new))
        if was is not None or becomes is not None:
            bpf_arch_text_poke(self._kernel, self.target.address, kind(old), kind(new), was, becomes)


def site_of(kernel: Kernel, target: TraceTarget) -> int:
    """The ftrace location of a target; 0 where it has none."""
    known = target.address + (target.site_offset or 0)
    return known if known in kernel.ftrace.records else kernel.ftrace.ftrace_location(target.address)


class TrampolineUpdate(NamedTuple):
    """A change of a trampoline under way: its image now and then (None: no programs), and its flags then."""

    old: SiteImage | None
    new: SiteImage | None
    flags: TrampFlag


class Trampolines:
    """All trampolines of a kernel by key (``trampoline_table``)."""

    def __init__(
        self, kernel: Kernel, rules: TrampolineRules, boot: Boot, sites: DirectSites, images: ImageSource
    ) -> None:
        self._kernel, self._rules = kernel, rules
        self.sites, self.images = sites, images
        self.boot = boot
        """For trampolines made from now on."""
        self._table: dict[int, BpfTrampoline] = {}
        self._mutex = Lock(kernel.process, "trampoline_mutex")
        self._pool = [
            Lock(kernel.process, f"trampoline_pool[{number}]")
            for number in range(0 if sites.batches is None else 1 << _POOL_BITS)
        ]
        """A batch takes them all (``trampoline_lock_all``); without batches each trampoline has its own mutex."""

    def get(self, *targets: TraceTarget) -> list[BpfTrampoline]:
        """The trampolines of targets, made where there are none (``bpf_trampoline_get``); they hold the targets'
        modules. KernelError: none is held then.
        """
        got: list[BpfTrampoline] = []
        table = self._table
        with self._mutex:
            try:
                for target in targets:
                    found = table.get(target.key)
                    if found is None:
                        found = table[target.key] = self._new(target)
                    found.refcnt += 1
                    got.append(found)
            except BaseException:
                self._put(got)
                raise
        return got

    def _new(self, target: TraceTarget) -> BpfTrampoline:
        # 861de02e5f3f: a module must not go away under its trampoline.
        self._kernel.modules.get(target.module)
        mutex = self._pool[hash_64(target.key, _POOL_BITS)] if self._pool else self._mutex_of(target)
        return BpfTrampoline(self._kernel, self._rules, self.boot, self.sites, self.images, target, mutex)

    def _mutex_of(self, target: TraceTarget) -> Lock:
        return Lock(self._kernel.process, f"trampoline of {target.name}")

    def of(self, target: TraceTarget) -> BpfTrampoline:
        """The trampoline of a target that has programs."""
        return self._table[target.key]

    def find(self, target: TraceTarget) -> BpfTrampoline | None:
        """The same, None where the target has none."""
        return self._table.get(target.key)

    def at(self, address: int) -> BpfTrampoline | None:
        """The trampoline in use whose image, a former one perhaps, covers an address."""
        symbol = self._kernel.kallsyms.at(address)
        _, is_trampoline, key = (symbol.name if symbol else "").partition(KSYM_PREFIX)
        return self._table.get(int(key)) if is_trampoline else None

    def put(self, *trampolines: BpfTrampoline) -> None:
        """Drop references; an object goes with the last one, even while old images still run
        (``bpf_trampoline_put``).
        """
        with self._mutex:
            self._put(trampolines)

    def _put(self, trampolines: Sequence[BpfTrampoline]) -> None:
        for trampoline in trampolines:
            trampoline.refcnt -= 1
            if trampoline.refcnt == 0:
                del self._table[trampoline.target.key]
                self._kernel.modules.put(trampoline.target.module)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[BpfTrampoline]:
        return iter(list(self._table.values()))
