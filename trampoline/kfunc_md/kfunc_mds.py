"""The metadata of traced functions: create, get, put, link, unlink, with the rules of the tracing-multi series."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import E2BIG, EBUSY, EEXIST, EINVAL, ENOENT, EOPNOTSUPP, EOVERFLOW

from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import Lock
from emu.machine.guest_struct import StructView
from trampoline.bpf.errors import TrampolineError
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.kfunc_md.flat_table import FlatTable
from trampoline.kfunc_md.hash_table import HashTable, MdCopies
from trampoline.kfunc_md.lifetime import Lifetimes, MdContent
from trampoline.kfunc_md.padding import Padding
from trampoline.kfunc_md.structs import kfunc_md, kfunc_md_tramp_prog
from trampoline.tramp_links import TrampProgType

MAX_ARGS = 12
"""MAX_BPF_FUNC_ARGS."""
BACKENDS = ("hash", "padding", "flat")
LISTS = (TrampProgType.FENTRY, TrampProgType.FEXIT, TrampProgType.MODIFY_RETURN)

_PROGS, _COUNT = kfunc_md.offset("bpf_progs"), kfunc_md.offset("bpf_prog_cnt")
_PROG, _COOKIE = (kfunc_md_tramp_prog.offset(name) for name in ("prog", "cookie"))
_USERS_MAX = 0xFFFF
_NODE = kfunc_md_tramp_prog.codec("next", "prog")


@dataclass(frozen=True, slots=True)
class MdEntry:
    """One function of a link (``bpf_gtramp_link_entry``). ``nr_args``: its argument slots."""

    func: int
    nr_args: int
    cookie: int = 0


@dataclass(frozen=True, slots=True)
class _Linked:
    """A program's node, where it is linked from, and what it links to."""

    at: int
    node: int
    following: int


class KfuncMds:
    """The metadata of one set of functions, found through one backend ("hash", "padding", "flat").

    Functions and programs are guest addresses. Whatever is refused or fails leaves everything as it was, except where
    ``defects`` says otherwise. ``refs`` False: callers do not hold metadata over the original call; it then has no
    percpu_ref. ``max_links``: programs on one function, all kinds together.
    """

    def __init__(
        self,
        kernel: Kernel,
        backend: str = "hash",
        *,
        defects: TracingMultiDefects = TracingMultiDefects(),  # noqa: B008  # frozen
        refs: bool = True,
        max_links: int = 38,
    ) -> None:
        self._machine = kernel.machine
        self.defects = defects
        self.backend = backend_of(kernel, backend, defects)
        self.lock = Lock(kernel.process, "kfunc_md_mutex")
        """Held by every operation, so that nobody else may hold it around one."""
        self.warnings: list[str] = []
        """What the posted series would have warned of (WARN_ON)."""
        self._max_links = max_links
        self._lifetimes = Lifetimes(kernel, self.backend, refs=refs)
        if defects.resize_copies and isinstance(self.backend, HashTable):
            lifetimes = self._lifetimes
            self.backend.copies = MdCopies(lifetimes.copy_md, lifetimes.discard_md, lambda md: lifetimes.retire((md,)))

    # What there is ------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, what waits for a grace period included."""
        return {**self._lifetimes.memory, **self.backend.memory}

    def find(self, func: int) -> int:
        """Guest address of a function's metadata, 0 without."""
        return self.backend.find(func)

    def md(self, func: int) -> StructView:
        """A function's metadata. KernelError (-ENOENT)."""
        return kfunc_md.view(self._machine, self._existing(func))

    def programs(self, func: int, kind: TrampProgType) -> list[tuple[int, int]]:
        """Programs of a kind on a function, in the order in which they run, each with its cookie."""
        md = self.backend.find(func)
        read = self._machine.read_u64
        return [(read(node + _PROG), read(node + _COOKIE)) for _, node in self._walk(md, kind)] if md else []

    def counts(self, functions: Iterable[int]) -> dict[int, int]:
        """How many programs are on each function that has metadata: its ``bpf_prog_cnt``."""
        read = self._machine.read_u8
        return {func: read(md + _COUNT) for func, md in self.backend.find_all(functions).items() if md}

    # References ---------------------------------------------------------------------------------------------------

    def create(self, func: int, nr_args: int) -> int:
        """A function's metadata with one more user (``kfunc_md_create``): new if it had none.

        KernelError: -ENOMEM, -EOPNOTSUPP for more than 12 argument slots or where the backend can't, -EOVERFLOW.
        """
        with self.lock:
            return self._create(func, nr_args)

    def get(self, func: int) -> int:
        """The same for a function that has metadata, else 0 (``kfunc_md_get``). KernelError (-EOVERFLOW)."""
        with self.lock:
            md = self.backend.find(func)
            if md:
                self._add_user(func, md)
            return md

    def put(self, *functions: int) -> None:
        """Drop one user of each (``kfunc_md_put``): with the last one its metadata goes, after its grace periods.

        KernelError: -ENOENT without metadata or with fewer users, -EBUSY where the last user goes and programs stay.
        """
        with self.lock:
            self._put(functions)

    # Programs -----------------------------------------------------------------------------------------------------

    def link(self, func: int, prog: int, kind: TrampProgType, cookie: int = 0) -> None:
        """Append a program to a function's list (``kfunc_md_bpf_link``); the caller is one of its users.

        KernelError: -ENOENT, -EEXIST where that list has the program, -E2BIG beyond the limit, -ENOMEM, -EINVAL for a
        kind without a list.
        """
        with self.lock:
            md = self._existing(func)
            self._link(func, md, prog, kind, cookie)

    def unlink(self, func: int, prog: int, kind: TrampProgType) -> None:
        """Take a program off a function's list (``kfunc_md_bpf_unlink``). KernelError: -ENOENT, -EINVAL."""
        with self.lock:
            self._lifetimes.retire((), (self._unlink(func, self._existing(func), prog, kind),))

    def link_entries(
        self, entries: Sequence[MdEntry], prog: int, kind: TrampProgType, *, refilter: Callable[[], None] = lambda: None
    ) -> None:
        """Link a program to many functions, each with a user of its own: all or none.

        One resize at most. KernelError as ``create`` and ``link``; a function twice is -EEXIST. ``refilter``: what the
        posted series calls in the midst of unlinking, after the programs and before the users.
        """
        with self.lock:
            if self.defects.unlink_stops or self.defects.unlink_walks_all:
                self._link_as_posted(entries, prog, kind, refilter)
            else:
                self._link_all(entries, prog, kind)

    def unlink_entries(
        self, entries: Sequence[MdEntry], prog: int, kind: TrampProgType, *, refilter: Callable[[], None] = lambda: None
    ) -> None:
        """Unlink a program from many functions and drop the users that ``link_entries`` made.

        Without percpu_refs everything waits for the same two grace periods. KernelError (-EINVAL) where some function
        did not have the program: all others are done nevertheless, but for the defect; -EBUSY, nothing done, where
        the last user of a function goes and programs stay.
        """
        with self.lock:
            if self.defects.unlink_stops:
                self._unlink_as_posted(entries, prog, kind, refilter)
            else:
                self._unlink_all(entries, prog, kind)

    # References, the lock being held ------------------------------------------------------------------------------

    def _existing(self, func: int) -> int:
        md = self.backend.find(func)
        if not md:
            raise KernelError(ENOENT, f"the function at {func:#x} has no metadata")
        return md

    def _create(self, func: int, nr_args: int) -> int:
        _check_args(func, nr_args)
        md = self.backend.find(func)
        if md:
            self._check_users(func, md)
            self.backend.prepare(())
            self._add_user(func, md := self.backend.find(func))
            return md
        md = self._lifetimes.alloc_md(func, MdContent(nr_args))
        try:
            self.backend.prepare((func,))
        except BaseException:
            self._lifetimes.discard_md(md)
            raise
        self.backend.insert({func: md})
        return md

    def _check_users(self, func: int, md: int) -> None:
        users = self._content(md).users
        if users == _USERS_MAX and not self.defects.narrow_counters:
            raise KernelError(EOVERFLOW, f"the metadata of {func:#x} has {users} users")

    def _add_user(self, func: int, md: int) -> None:
        self._check_users(func, md)
        content = self._content(md)
        content.users = content.users + 1 & _USERS_MAX
        content.write_counts(self._machine, md)

    def _put(self, functions: Sequence[int]) -> None:
        drops = Counter(functions)
        mds = self.backend.find_all(drops)
        contents = {}
        for func, drop in drops.items():
            if not mds[func]:
                raise KernelError(ENOENT, f"the function at {func:#x} has no metadata")
            contents[func] = content = self._content(mds[func])
            if not self.defects.narrow_counters:
                if content.users < drop:
                    raise KernelError(ENOENT, f"the metadata of {func:#x} has {content.users} users, not {drop}")
                if content.users == drop and any(content.programs):
                    raise KernelError(EBUSY, f"programs are linked to {func:#x}")
        last = []
        for func, content in contents.items():
            content.users = content.users - drops[func] & _USERS_MAX
            content.write_counts(self._machine, mds[func])
            if content.users == 0:
                last.append(func)
        self._drop(last, mds)

    def _drop(self, last: Sequence[int], mds: Mapping[int, int], nodes: Sequence[int] = ()) -> None:
        """Functions without users; ``nodes`` that were unlinked before are retired together with their metadata."""
        if last:
            self.backend.remove(last)
        self._lifetimes.retire([mds[func] for func in last], nodes)
        if last:
            # Too little memory for a smaller table is no reason to keep the metadata.
            with suppress(KernelError):
                self.backend.shrink()

    # Programs, the lock being held --------------------------------------------------------------------------------

    def _content(self, md: int) -> MdContent:
        return MdContent.read(self._machine, md)

    def _walk(self, md: int, kind: TrampProgType) -> Iterator[tuple[int, int]]:
        """Where each node of a list is linked from, and the node."""
        at = md + _PROGS + 8 * LISTS.index(kind)
        while node := self._machine.read_u64(at):
            yield at, node
            at = node

    def _check_link(self, func: int, md: int, prog: int, kind: TrampProgType) -> None:
        if any(self._machine.read_u64(node + _PROG) == prog for _, node in self._walk(md, kind)):
            raise KernelError(EEXIST, f"the program is linked to {func:#x} already")
        if self._content(md).bpf_prog_cnt >= self._max_links and not self.defects.narrow_counters:
            raise KernelError(E2BIG, f"{func:#x} has {self._max_links} programs")

    def _link(self, func: int, md: int, prog: int, kind: TrampProgType, cookie: int) -> None:
        _check_kind(kind)
        self._check_link(func, md, prog, kind)
        self._append(md, self._lifetimes.alloc_node(prog, cookie), kind)

    def _append(self, md: int, node: int, kind: TrampProgType) -> None:
        at = md + _PROGS + 8 * LISTS.index(kind)
        while following := self._machine.read_u64(at):
            at = following
        self._machine.write_u64(at, node)
        content = self._content(md)
        content.bpf_prog_cnt = content.bpf_prog_cnt + 1 & 0xFF
        content.bpf_origin_call |= kind is not TrampProgType.FENTRY
        content.write_counts(self._machine, md)

    def _unlink(self, func: int, md: int, prog: int, kind: TrampProgType) -> int:
        """The node that was unlinked; it still leads on to the rest of the list."""
        _check_kind(kind)
        linked = self._linked(md, prog, kind)
        if linked is None:
            raise KernelError(EINVAL, f"the program is not linked to {func:#x}")
        content = self._content(md)
        self._take_off(md, linked, content)
        content.write_counts(self._machine, md)
        return linked.node

    def _linked(self, md: int, prog: int, kind: TrampProgType) -> _Linked | None:
        at = md + _PROGS + 8 * LISTS.index(kind)
        while node := self._machine.read_u64(at):
            following, found = _NODE.unpack(self._machine.read(node, _NODE.size))
            if found == prog:
                return _Linked(at, node, following)
            at = node
        return None

    def _take_off(self, md: int, linked: _Linked, content: MdContent) -> None:
        """Unlink a node; the counts that ``content`` then has are still to be written."""
        self._machine.write_u64(linked.at, linked.following)
        head = (linked.at - md - _PROGS) // 8
        if 0 <= head < len(LISTS):
            content.programs[head] = linked.following
        content.bpf_origin_call = any(content.programs[1:])
        content.bpf_prog_cnt = content.bpf_prog_cnt - 1 & 0xFF

    def _link_all(self, entries: Sequence[MdEntry], prog: int, kind: TrampProgType) -> None:
        _check_kind(kind)
        found = self.backend.find_all(entry.func for entry in entries)
        if len(found) < len(entries):
            raise KernelError(EEXIST, "a function is there twice")
        for entry in entries:
            _check_args(entry.func, entry.nr_args)
            md = found[entry.func]
            if md:
                self._check_link(entry.func, md, prog, kind)
                self._check_users(entry.func, md)
        lifetimes = self._lifetimes
        nodes: list[int] = []
        fresh: dict[int, int] = {}
        place, origin = LISTS.index(kind), kind is not TrampProgType.FENTRY
        try:
            for entry in entries:
                nodes.append(lifetimes.alloc_node(prog, entry.cookie))
                if not found[entry.func]:
                    programs = [0, 0, 0]
                    programs[place] = nodes[-1]
                    content = MdContent(entry.nr_args, 1, programs, origin, 1)
                    fresh[entry.func] = lifetimes.alloc_md(entry.func, content)
            self.backend.prepare(list(fresh))
        except BaseException:
            for md in fresh.values():
                lifetimes.discard_md(md)
            lifetimes.discard_nodes(nodes)
            raise
        for entry, node in zip(entries, nodes, strict=True):
            if entry.func not in fresh:
                # A resize that copies metadata has moved it.
                md = self.backend.find(entry.func) if self.defects.resize_copies else found[entry.func]
                self._append(md, node, kind)
                self._add_user(entry.func, md)
        self.backend.insert(fresh)

    def _unlink_all(self, entries: Sequence[MdEntry], prog: int, kind: TrampProgType) -> None:
        _check_kind(kind)
        links: dict[int, tuple[_Linked, MdContent]] = {}
        missing: list[int] = []
        mds = self.backend.find_all(entry.func for entry in entries)
        for entry in entries:
            md = mds[entry.func]
            linked = self._linked(md, prog, kind) if md and entry.func not in links else None
            if linked is None:
                missing.append(entry.func)
                continue
            content = self._content(md)
            links[entry.func] = linked, content
            if content.users == 1 and content.bpf_prog_cnt != 1:
                raise KernelError(EBUSY, f"other programs are linked to {entry.func:#x}")
        last = []
        for func, (linked, content) in links.items():
            self._take_off(mds[func], linked, content)
            content.users = content.users - 1 & _USERS_MAX
            content.write_counts(self._machine, mds[func])
            if content.users == 0:
                last.append(func)
        self._drop(last, mds, [linked.node for linked, _ in links.values()])
        if missing:
            names = ", ".join(f"{func:#x}" for func in missing[:5])
            raise KernelError(EINVAL, f"the program was not linked to {len(missing)} functions, {names}")

    def _link_as_posted(
        self, entries: Sequence[MdEntry], prog: int, kind: TrampProgType, refilter: Callable[[], None]
    ) -> None:
        """``__bpf_gtrampoline_link_prog``: one by one."""
        created: list[int] = []
        linked: list[int] = []
        try:
            for entry in entries:
                md = self._create(entry.func, entry.nr_args)
                created.append(entry.func)
                self._link(entry.func, md, prog, kind, entry.cookie)
                linked.append(entry.func)
        except KernelError:
            if self.defects.unlink_walks_all:
                with suppress(KernelError):
                    self._unlink_as_posted(entries, prog, kind, refilter)
            else:
                nodes = [self._unlink(func, self.backend.find(func), prog, kind) for func in linked]
                self._lifetimes.retire((), nodes)
                for func in created:
                    self._put((func,))
            raise

    def _unlink_as_posted(
        self, entries: Sequence[MdEntry], prog: int, kind: TrampProgType, refilter: Callable[[], None]
    ) -> None:
        """``__bpf_gtrampoline_unlink_prog``: with the defect -EINVAL of one function skips the rest, and all puts."""
        for entry in entries:
            md = self.backend.find(entry.func)
            if not md:
                self.warnings.append(f"no metadata of the function at {entry.func:#x}")
                continue
            try:
                self._lifetimes.retire((), (self._unlink(entry.func, md, prog, kind),))
            except KernelError:
                if self.defects.unlink_stops:
                    raise
        try:
            refilter()
        finally:
            for entry in entries:
                if self.backend.find(entry.func):
                    self._put((entry.func,))


def backend_of(
    kernel: Kernel,
    name: str,
    defects: TracingMultiDefects = TracingMultiDefects(),  # noqa: B008  # frozen
) -> MetadataBackend:
    """A new back end by its name. TrampolineError for one that does not exist."""
    if name == "hash":
        return HashTable(kernel, defects)
    if name == "padding":
        return Padding(kernel)
    if name == "flat":
        return FlatTable(kernel)
    raise TrampolineError(f"no metadata backend {name!r}; there are {', '.join(BACKENDS)}")


def _check_args(func: int, nr_args: int) -> None:
    if not 0 <= nr_args <= MAX_ARGS:
        raise KernelError(EOPNOTSUPP, f"the function at {func:#x} has {nr_args} argument slots, more than {MAX_ARGS}")


def _check_kind(kind: TrampProgType) -> None:
    if kind not in LISTS:
        raise KernelError(EINVAL, f"metadata has no list for {kind.name} programs")
