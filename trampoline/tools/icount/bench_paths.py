"""Paths of the bench: each selected row on each kernel and design, with a unique name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trampoline.bpf.errors import KernelError
from trampoline.designs import design_info
from trampoline.lab import Lab
from trampoline.tools.bench.bench import ROWS, Bench, executed_of
from trampoline.tools.icount.capture import path_of
from trampoline.tools.icount.counted_path import CountedPath


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected rows: all of the bench's for each of these. ``full`` programs read ip, cookie and argument count."""

    flavours: Sequence[str]
    configs: Sequence[str]
    designs: Sequence[str]
    nr_args: Sequence[int] = (1,)
    programs: Sequence[int] = (1,)
    full: bool = False

    def paths(self) -> dict[str, CountedPath]:
        """Count the paths, by name. Raises KernelError if every one is refused."""
        found: dict[str, CountedPath] = {}
        refused: KernelError | None = None
        for config in self.configs:
            for flavour in self.flavours:
                for design in self.designs:
                    for metadata in (None, *(design_info(design).metadata or ())) if self.full else (None,):
                        with _Kernel(flavour, config, design, metadata) as kernel:
                            for path in self._of(kernel, metadata):
                                if isinstance(path, KernelError):
                                    refused = refused or path
                                else:
                                    found[path[0]] = path[1]
        if not found and refused is not None:
            raise refused
        return found

    def _of(self, kernel: "_Kernel", metadata: str | None) -> Iterator[tuple[str, CountedPath] | KernelError]:
        rows = [name for name, kind in ROWS.items() if metadata is None or kind.endswith("_multi")]
        for name in rows:
            for nr_args in self.nr_args:
                try:
                    for programs, path in kernel.count(name, nr_args, self.programs, full=self.full):
                        yield path_name(kernel.where, name, nr_args, programs, self.full, kernel.metadata), path
                except KernelError as error:
                    yield error


def path_name(
    where: tuple[str, str, str], row: str, nr_args: int, programs: int, full: bool, metadata: str | None
) -> str:
    """Name of a path: release, configuration and design, the row, then deviations from the defaults."""
    parts = [*where, row, f"{nr_args}-arg{'s' * (nr_args != 1)}"]
    parts += [f"{programs}-programs"] * (programs != 1) + ["full"] * full + ([metadata] if metadata else [])
    return "/".join(parts)


class _Kernel:
    """One kernel for many rows, with the same state as after a boot for each."""

    def __init__(self, flavour: str, config: str, design: str, metadata: str | None) -> None:
        self.where = (flavour, config, design)
        self.metadata = metadata
        self._lab = Lab(flavour, config, design=design, metadata=metadata)
        self._booted = self._lab.kernel.checkpoint([self._lab])

    def count(
        self, row: str, nr_args: int, programs: Sequence[int], *, full: bool
    ) -> Iterator[tuple[int, CountedPath]]:
        """Count a row with each of these numbers of programs. Raises KernelError if one is refused."""
        lab = self._lab
        try:
            same_cookie = bool(design_info(self.where[-1]).metadata) and self.metadata is None
            bench = Bench(lab, row, nr_args, "full" if full else "plain", same_cookie=same_cookie)
            for attached in range(1, max(programs) + 1):
                bench.attach()
                if attached in programs:
                    counts = bench.call()
                    executed = executed_of(lab, counts.by_address, bench.traced)
                    yield attached, path_of(lab, executed, counts.unbalanced_returns)
        finally:
            lab.kernel.restore(self._booted)

    def __enter__(self) -> "_Kernel":
        return self

    def __exit__(self, *exc: object) -> None:
        self._lab.close()
