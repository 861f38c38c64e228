"""Metadata in a hash table that grows and shrinks (``kfunc_md_array``)."""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emu.kernel.kernel import Kernel
from emu.kernel.process_context import PointKind
from emu.kernel.rcu import RcuFlavour
from trampoline.kfunc_md.backend import REGISTERS
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.kfunc_md.hash_64 import MIN_KFUNC_MD_ARRAY_BITS, grown_bits, hash_64, shrunk_bits
from trampoline.kfunc_md.lookup import Entered, LookupRegisters, hash_lookup
from trampoline.kfunc_md.structs import asm_symbols, kfunc_md, kfunc_md_array

_FEW = 5
"""Up to one bucket in 2**_FEW is read or written by itself; more of them with the whole table at once."""
_LINKS = kfunc_md.codec("hash", "func")
_HEAD = kfunc_md_array.codec("used", "hash_bits", "shift", "link", end=kfunc_md_array.size)
_USED, _MDS, _FUNC = kfunc_md_array.offset("used"), kfunc_md_array.offset("mds"), kfunc_md.offset("func")


@dataclass(frozen=True, slots=True)
class MdCopies:
    """How the posted series' resize makes metadata anew: a copy, a copy that is not wanted, an old one that is."""

    copy: Callable[[int], int]
    discard: Callable[[int], None]
    retire: Callable[[int], None]


class HashTable:
    """The series' hash: ``hash_64(func)`` picks a chain of metadata objects.

    A resize chains the same objects by their other link and publishes the new table; the old one is freed after an
    RCU-tasks grace period. So a look-up under way finds what it would have found before, and needs no read section.
    Until that grace period is over the other link is in use: a resize that is due earlier is made at the next check.
    """

    name = "hash"

    def __init__(self, kernel: Kernel, defects: TracingMultiDefects = TracingMultiDefects()) -> None:  # noqa: B008  # frozen
        self._kernel, self._machine, self._defects = kernel, kernel.machine, defects
        self.nodes = kernel.slab
        self.copies: MdCopies | None = None
        """Set where ``TracingMultiDefects.resize_copies`` is."""
        self._pointer = kernel.module_data(8, 8)
        size = kfunc_md_array.size + (8 << MIN_KFUNC_MD_ARRAY_BITS)
        self._static = kernel.module_data(size, 16)
        self._static_bytes = size + 8
        self._sizes: dict[int, int] = {}
        self._write(self._static, MIN_KFUNC_MD_ARRAY_BITS, 0, 0, [0] * (1 << MIN_KFUNC_MD_ARRAY_BITS))
        self._machine.write_u64(self._pointer, self._static)
        self._draining = 0

    # What there is ------------------------------------------------------------------------------------------------

    @property
    def table(self) -> int:
        """Guest address of the table that look-ups use."""
        return self._machine.read_u64(self._pointer)

    @property
    def bits(self) -> int:
        """Its size: 2**bits buckets."""
        return self._machine.read_u32(self.table + kfunc_md_array.offset("hash_bits"))

    @property
    def used(self) -> int:
        """Metadata objects in it."""
        return self._machine.read_u32(self.table + _USED)

    @property
    def symbols(self) -> dict[str, int]:
        """``kfunc_mds``, the pointer to the table, and the structures' fields."""
        return {**asm_symbols(), "kfunc_mds": self._pointer}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the tables, old ones that are not freed yet among them, and of what is there from the start."""
        return {"kfunc_md_array": sum(self._sizes.values()), "static": self._static_bytes}

    def chain(self, func: int) -> list[int]:
        """Metadata objects that a look-up of a function may meet, in order."""
        return list(self._chain(self.table, hash_64(func, self.bits)))

    def find(self, func: int) -> int:
        """Guest address of a function's metadata, 0 without."""
        read = self._machine.read_u64
        table = read(self._pointer)
        head = self._machine.read(table + kfunc_md_array.offset("hash_bits"), 6)
        md, link = read(table + _MDS + 8 * hash_64(func, head[0])), head[5]
        while md and read(md + _FUNC) != func:
            md = read(md + link)
        return md

    def find_all(self, functions: Iterable[int]) -> dict[int, int]:
        """The same for many functions."""
        table, bits = self.table, self.bits
        link = self._link(table)
        buckets = {func: hash_64(func, bits) for func in functions}
        heads = self._heads(table, bits, buckets.values())
        found = {}
        for func, bucket in buckets.items():
            md = heads[bucket]
            while md:
                links = _LINKS.unpack(self._machine.read(md, _LINKS.size))
                if links[2] == func:
                    break
                md = links[link >> 3]
            found[func] = md
        return found

    def lookup(
        self,
        entered: Entered,
        *,
        label: str,
        missing: str,
        registers: LookupRegisters = REGISTERS,
        checked: bool = False,
    ) -> str:
        """``hash_lookup``; it is always checked, but for the series' own defect."""
        return hash_lookup(
            entered, label=label, missing=missing, registers=registers, unchecked=self._defects.null_result
        )

    # Changes ------------------------------------------------------------------------------------------------------

    def prepare(self, functions: Sequence[int]) -> None:
        """Grow as so many creations would, in one step. KernelError (-ENOMEM)."""
        bits = grown_bits(self.bits, self.used, max(len(functions), 1))
        if bits != self.bits:
            self._resize(bits)

    def insert(self, mds: Mapping[int, int]) -> None:
        """At the head of their chains."""
        machine, table, bits = self._machine, self.table, self.bits
        link = self._link(table)
        buckets = {func: hash_64(func, bits) for func in mds}
        heads = self._heads(table, bits, buckets.values())
        for func, md in mds.items():
            machine.write_u64(md + link, heads[buckets[func]])
            heads[buckets[func]] = md
        self._set_heads(table, bits, heads)
        machine.write_u32(table + _USED, self.used + len(mds))

    def remove(self, functions: Sequence[int]) -> None:
        """Unchain; what is unchained still leads on to the rest of its chain."""
        machine, table, bits = self._machine, self.table, self.bits
        link = self._link(table)
        buckets = {func: hash_64(func, bits) for func in functions}
        heads = self._heads(table, bits, buckets.values())
        for func, bucket in buckets.items():
            before, md = 0, heads[bucket]
            while (links := _LINKS.unpack(machine.read(md, _LINKS.size)))[2] != func:
                before, md = md, links[link >> 3]
            if before:
                machine.write_u64(before + link, links[link >> 3])
            else:
                heads[bucket] = links[link >> 3]
        self._set_heads(table, bits, heads)
        machine.write_u32(table + _USED, self.used - len(functions))

    def forget(self, functions: Sequence[int]) -> None:
        """Nothing but the metadata itself was theirs."""

    def shrink(self) -> None:
        """What follows a last put. KernelError (-ENOMEM): the table stays as it is."""
        bits = shrunk_bits(self.bits, self.used)
        if bits != self.bits:
            self._resize(bits)

    def _resize(self, bits: int) -> None:
        if self.copies is not None:
            self._resize_copying(bits, self.copies)
        else:
            self._resize_relinking(bits)

    def _resize_relinking(self, bits: int) -> None:
        rcu, old = self._kernel.rcu, self.table
        if self._draining:
            rcu.poll()
            if self._draining:
                # Its readers still follow the other link.
                return
        new = self._alloc(bits)
        link = 8 - self._link(old)
        heads = [0] * (1 << bits)
        for md in self._all(old):
            bucket = hash_64(self._machine.read_u64(md + _FUNC), bits)
            self._machine.write_u64(md + link, heads[bucket])
            heads[bucket] = md
        self._write(new, bits, link, self.used, heads)
        self._publish(new)
        self._draining = old
        rcu.call(RcuFlavour.RCU_TASKS, lambda: self._drained(old))

    def _resize_copying(self, bits: int, copies: MdCopies) -> None:
        rcu, old = self._kernel.rcu, self.table
        new = self._alloc(bits)
        made: list[int] = []
        heads = [0] * (1 << bits)
        mds = list(self._all(old))
        try:
            for md in mds:
                copy = copies.copy(md)
                made.append(copy)
                bucket = hash_64(self._machine.read_u64(md + _FUNC), bits)
                self._machine.write_u64(copy, heads[bucket])
                heads[bucket] = copy
        except BaseException:
            for copy in made:
                copies.discard(copy)
            self._free(new)
            raise
        self._write(new, bits, 0, self.used, heads)
        self._publish(new)
        rcu.synchronize(RcuFlavour.RCU)
        for md in mds:
            copies.retire(md)
        self._write(old, self._machine.read_u32(old + kfunc_md_array.offset("hash_bits")), 0, 0, ())
        rcu.call(RcuFlavour.RCU, lambda: self._free(old))

    def _publish(self, table: int) -> None:
        self._kernel.process.point(PointKind.PUBLISH, "kfunc_mds")
        self._machine.write_u64(self._pointer, table)

    def _drained(self, table: int) -> None:
        self._draining = 0
        self._free(table)

    # Memory -------------------------------------------------------------------------------------------------------

    def _alloc(self, bits: int) -> int:
        size = kfunc_md_array.size + (8 << bits)
        table = self._kernel.slab.alloc(size, f"kfunc_md_array of {1 << bits} buckets")
        self._sizes[table] = size
        return table

    def _free(self, table: int) -> None:
        if self._sizes.pop(table, None) is not None:
            self._kernel.slab.free(table)

    def _write(self, table: int, bits: int, link: int, used: int, heads: Sequence[int]) -> None:
        """The head of a table, and its buckets; those beyond ``heads`` become empty."""
        buckets = struct.pack(f"<{len(heads)}Q", *heads).ljust(8 << bits, b"\0")
        self._machine.write(table, _HEAD.pack(used, bits, 64 - bits, link) + buckets)

    def _all_heads(self, table: int, bits: int) -> list[int]:
        return list(struct.unpack(f"<{1 << bits}Q", self._machine.read(table + _MDS, 8 << bits)))

    def _heads(self, table: int, bits: int, buckets: Collection[int]) -> dict[int, int]:
        """First metadata of some chains, by bucket."""
        if len(buckets) << _FEW > 1 << bits:
            heads = self._all_heads(table, bits)
            return {bucket: heads[bucket] for bucket in buckets}
        return {bucket: self._machine.read_u64(table + _MDS + 8 * bucket) for bucket in buckets}

    def _set_heads(self, table: int, bits: int, heads: Mapping[int, int]) -> None:
        if len(heads) << _FEW > 1 << bits:
            every = self._all_heads(table, bits)
            for bucket, head in heads.items():
                every[bucket] = head
            self._machine.write(table + _MDS, struct.pack(f"<{len(every)}Q", *every))
        else:
            for bucket, head in heads.items():
                self._machine.write_u64(table + _MDS + 8 * bucket, head)

    def _link(self, table: int) -> int:
        return self._machine.read_u8(table + kfunc_md_array.offset("link"))

    def _chain(self, table: int, bucket: int) -> Iterator[int]:
        link = self._link(table)
        md = self._machine.read_u64(table + _MDS + 8 * bucket)
        while md:
            yield md
            md = self._machine.read_u64(md + link)

    def _all(self, table: int) -> Iterator[int]:
        bits, link = self._machine.read_u32(table + kfunc_md_array.offset("hash_bits")), self._link(table)
        for head in self._all_heads(table, bits):
            md = head
            while md:
                yield md
                md = self._machine.read_u64(md + link)
