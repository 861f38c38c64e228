"""What a laboratory holds at rest: compared before and after, it says what was left over, or changed."""

from collections import Counter
from dataclasses import dataclass, fields, replace

from trampoline.lab import Lab

_MEMORY = frozenset({"images", "slab", "vmalloc", "percpu", "programs", "symbols", "grace_periods"})


@dataclass(frozen=True, slots=True)
class Holdings:
    """Text, memory and registrations of a kernel. Where two are equal, nothing came and nothing was left over."""

    text: dict[str, bytes]
    images: dict[int, str]
    slab: list[str]
    vmalloc: list[str]
    percpu: list[str]
    symbols: int
    """How many there are."""
    direct_functions: dict[int, int]
    ftrace_ops: list[str]
    sites: list[int]
    """Every patch site, also where nobody is."""
    users: dict[int, list[str]]
    """Names of the users of each patch site that has some."""
    trampolines: dict[str, tuple[int, int]]
    """References and programs of each trampoline, by its target."""
    programs: dict[str, int]
    """References of each loaded program."""
    grace_periods: int

    @classmethod
    def of(cls, lab: Lab, keeps: str = "") -> "Holdings":
        """What it holds now, but for one object of the kernel whose name begins with ``keeps``; ends the grace periods
        that can end, if that is left to the kernel.
        """
        kernel = lab.kernel
        kernel.rcu.settle()
        slab = sorted(map(str, kernel.slab.objects.values()))
        if keeps and (kept := next((name for name in slab if name.startswith(keeps)), None)):
            slab.remove(kept)
        return cls(
            text_of(lab),
            {address: str(image) for address, image in kernel.execmem.images.items()},
            slab,
            sorted(map(str, kernel.vmalloc.objects.values())),
            sorted(map(str, kernel.percpu.objects.values())),
            len(kernel.kallsyms),
            dict(kernel.ftrace.direct_functions),
            sorted(ops.name for ops in kernel.ftrace.ops),
            sorted(kernel.ftrace.records),
            {
                site: sorted(ops.name for ops in record.users)
                for site, record in kernel.ftrace.records.items()
                if record.users
            },
            {tr.target.name: (tr.refcnt, len(tr.links)) for tr in lab.trampolines},
            {prog.name: prog.refs for prog in lab.programs.loaded.values()},
            kernel.rcu.pending,
        )

    def without_places(self) -> "Holdings":
        """The same where it does not matter which image a site reaches, and where it lies."""
        return replace(
            self,
            text={},
            images=dict(enumerate(sorted(self.images.values()))),
            direct_functions=dict.fromkeys(self.direct_functions, 0),
        )

    def difference(self, other: "Holdings") -> str:
        """What is different in the other, a line each; empty where nothing is.

        Where a grace period of the other's is not over, what it will free is not known: memory is left out.
        """
        lines = []
        for field in fields(self):
            if other.grace_periods and field.name in _MEMORY:
                continue
            mine, its = getattr(self, field.name), getattr(other, field.name)
            if mine == its:
                continue
            if isinstance(mine, dict):
                keys = sorted(key for key in mine.keys() | its.keys() if mine.get(key) != its.get(key))
                mine, its = {key: mine.get(key) for key in keys}, {key: its.get(key) for key in keys}
            elif isinstance(mine, list):
                one, two = Counter(mine), Counter(its)
                mine, its = sorted((one - two).elements()), sorted((two - one).elements())
            lines.append(f"{field.name}: {mine} before, {its} after")
        return "\n".join(lines)


def text_of(lab: Lab) -> dict[str, bytes]:
    """The present code of every function."""
    kernel = lab.kernel
    placed = dict(kernel.functions.items())
    ours = [function for function in placed.values() if not function.module]
    start, end = min(one.address for one in ours), max(one.address + one.size for one in ours)
    # At once: this is looked at after every step.
    text = kernel.machine.read(start, end - start)
    return {
        name: kernel.machine.read(one.address, one.size)
        if one.module
        else text[one.address - start : one.address - start + one.size]
        for name, one in placed.items()
    }
