"""Programs and objects in a real kernel, by its own bpf(2): maps made, BTF loaded, programs verified and attached."""

from __future__ import annotations

import fnmatch
import re
import struct
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from emu.vmlinux.errors import NoSymbol
from emu.vmlinux.system_calls import Refused, SystemCalls, Verdict
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.isa.codec import encode
from trampoline.bpf.isa.insn import LD_IMM64, Imm64, Insn
from trampoline.bpf.maps.value_format import format_of
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import AttachType, MapType, ProgType
from trampoline.lab.kernel_btf import func_info, line_info, loadable

if TYPE_CHECKING:
    from trampoline.lab.own_kernel import OwnKernel

_PROBE_SESSIONS = (AttachType.TRACE_KPROBE_MULTI, AttachType.TRACE_KPROBE_SESSION)
_SHOWN = (MapType.HASH, MapType.ARRAY, MapType.LRU_HASH)
_BY_SYMBOL = ("ksyscall", "kretsyscall")
_SYSCALL = "__x64_sys_"


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """A program in a real kernel: its descriptor there, what it was loaded from, the verifier's log."""

    fd: int
    source: BpfProgram
    log: str

    @property
    def name(self) -> str:
        """Its name."""
        return self.source.name


@dataclass(frozen=True, slots=True)
class KernelLink:
    """An attached program: the descriptors of its link and of the perf event below it (-1 without)."""

    program: KernelProgram
    where: str
    fd: int
    event_fd: int = -1


@dataclass
class KernelMaps:
    """Maps of one object in a kernel: descriptors by name, and the object's BTF there (0 without)."""

    specs: dict[str, MapSpec] = field(default_factory=dict)
    fds: dict[str, int] = field(default_factory=dict)
    btf: Btf | None = None
    btf_fd: int = 0
    raw_btf: bytes = b""


class KernelLoader:
    """Loads and attaches in one kernel. Everything raises ``Refused`` with the kernel's errno and log."""

    def __init__(self, kernel: OwnKernel) -> None:
        self.kernel = kernel

    @property
    def calls(self) -> SystemCalls:
        """The kernel's system calls."""
        return self.kernel.calls

    # Programs -------------------------------------------------------------------------------------------------------

    def verdict(self, program: BpfProgram, maps: KernelMaps, *, log_level: int = 0, target_fd: int = 0) -> Verdict:
        """The kernel's answer to BPF_PROG_LOAD. ``log_level`` is the kernel's: 1 errors, 2 every path, 4 statistics."""
        has_types = bool(maps.btf_fd and program.funcs)
        return self.calls.load_program(
            encode(self._with_descriptors(program, maps)),
            int(program.prog_type),
            int(program.attach),
            program.attach_btf_id,
            name=program.name,
            license=program.license,
            flags=program.flags,
            target_fd=target_fd,
            log_level=log_level,
            btf_fd=maps.btf_fd if has_types else 0,
            func_info=func_info(program) if has_types else b"",
            line_info=line_info(program, maps.raw_btf) if has_types else b"",
        )

    def load(self, program: BpfProgram, maps: KernelMaps | None = None, *, target_fd: int = 0) -> KernelProgram:
        """Verify and compile. A refused one is loaded once more for the log, as libbpf does."""
        maps = maps or self.maps_of((program,), {}, program.btf)
        verdict = self.verdict(program, maps, target_fd=target_fd)
        if not verdict.is_loaded:
            verdict = self.verdict(program, maps, log_level=1, target_fd=target_fd)
        if not verdict.is_loaded:
            raise Refused(f"BPF_PROG_LOAD {program.name}", verdict.errno, verdict.log)
        return KernelProgram(verdict.fd, program, verdict.log)

    @staticmethod
    def _with_descriptors(program: BpfProgram, maps: KernelMaps) -> Iterator[Insn]:
        for insn in program.insns:
            if insn.code == LD_IMM64 and insn.src in (Imm64.MAP_FD, Imm64.MAP_VALUE):
                fd = maps.fds[program.maps[insn.imm & 0xFFFFFFFF].name]
                yield replace(insn, imm=insn.imm & ~0xFFFFFFFF | fd)
            else:
                yield insn

    # Maps -----------------------------------------------------------------------------------------------------------

    def maps_of(self, programs: Collection[BpfProgram], defined: Mapping[str, MapSpec], btf: Btf | None) -> KernelMaps:
        """Make the maps of programs and those that their object defines, and load its BTF."""
        made = KernelMaps({**defined, **{spec.name: spec for one in programs for spec in one.maps}}, btf=btf)
        if btf is not None and len(btf) > 1:
            made.raw_btf = loadable(btf)
            made.btf_fd = self.calls.load_btf(made.raw_btf)
        for name, spec in made.specs.items():
            made.fds[name] = self._make(spec, made)
        return made

    def _make(self, spec: MapSpec, made: KernelMaps) -> int:
        inner = self._make(spec.inner, made) if spec.inner is not None else 0
        entries = spec.max_entries
        if spec.type is MapType.PERF_EVENT_ARRAY and not entries:
            entries = 1
        has_types = bool(made.btf_fd and spec.value_type and spec.key_type and spec.inner is None)

        def create(btf_fd: int, key_type: int, value_type: int) -> int:
            return self.calls.create_map(
                int(spec.type), spec.key_size, spec.value_size, entries, flags=spec.flags, name=_map_name(spec.name),
                inner_fd=inner, btf_fd=btf_fd, key_type=key_type, value_type=value_type, extra=spec.extra,
            )  # fmt: skip

        try:
            fd = create(made.btf_fd, spec.key_type, spec.value_type) if has_types else create(0, 0, 0)
        except Refused:
            if not has_types:
                raise
            fd = create(0, 0, 0)  # some types of maps take none
        if spec.initial:
            self.calls.update(fd, bytes(spec.key_size), spec.initial.ljust(spec.value_size, b"\0"))
        if spec.readonly:
            self.calls.freeze(fd)
        if inner:
            self.kernel.close_descriptor(inner)
        return fd

    # Links ----------------------------------------------------------------------------------------------------------

    def attach(self, program: KernelProgram, where: str | None = None, cookie: int = 0) -> KernelLink:
        """Attach to what the section says, or to ``where``. TrampolineError where neither says it, or not how."""
        source, calls = program.source, self.calls
        target = source.target if where is None else where
        attach = int(source.attach)
        match source.prog_type:
            case ProgType.RAW_TRACEPOINT | ProgType.RAW_TRACEPOINT_WRITABLE:
                return KernelLink(program, target, calls.open_raw_tracepoint(program.fd, target, cookie))
            case ProgType.TRACEPOINT:
                event = calls.open_tracepoint(target.rpartition("/")[2])
                return self._on_event(program, target, event, cookie)
            case ProgType.KPROBE if attach in _PROBE_SESSIONS:
                addresses = tuple(self._addresses(target))
                link = calls.create_multi_link(
                    program.fd,
                    addresses,
                    attach_type=attach,
                    on_return=source.section.startswith("kret"),
                    cookies=(cookie,) * len(addresses) if cookie else (),
                )
                return KernelLink(program, f"{target} ({len(addresses)})" if "*" in target else target, link)
            case ProgType.KPROBE:
                return self._on_event(program, target, self._probe(source, target), cookie)
            case ProgType.TRACING if AttachType(attach).is_multi:
                functions = self._btf_ids(target)
                cookies = (cookie,) * len(functions) if cookie else ()
                return KernelLink(
                    program, target, calls.create_tracing_multi_link(program.fd, attach, functions, cookies)
                )
            case ProgType.TRACING | ProgType.LSM | ProgType.EXT:
                extra = struct.pack("<QQ", 0, cookie) if cookie else b""
                return KernelLink(program, target, calls.create_link(program.fd, attach, 0, extra))
        raise TrampolineError(f"{program.name}: programs of type {source.prog_type!s} are not attached here")

    def _on_event(self, program: KernelProgram, target: str, event: int, cookie: int) -> KernelLink:
        extra = struct.pack("<Q", cookie) if cookie else b""
        try:
            return KernelLink(
                program, target, self.calls.create_link(program.fd, AttachType.PERF_EVENT, event, extra), event
            )
        except Refused:
            self.kernel.close_descriptor(event)
            raise

    def _probe(self, source: BpfProgram, target: str) -> int:
        if not target:
            raise TrampolineError(f"{source.name}: attach it to what?")
        symbol, _, offset = target.partition("+")
        prefix = source.section.partition("/")[0].removeprefix("?")
        if prefix in _BY_SYMBOL:
            symbol = _SYSCALL + symbol
        try:
            distance = int(offset or "0", 0)
        except ValueError:
            raise TrampolineError(f"{target!r} is not a function and an offset") from None
        return self.calls.open_probe(symbol, distance, on_return=prefix.startswith("kret"))

    def _addresses(self, target: str) -> list[int]:
        """Functions of a kprobe_multi link: a name, or those that ftrace can patch and a glob matches."""
        symbols = self.kernel.symbols
        if not target:
            raise TrampolineError("a multi program needs the functions that it is attached to")
        if not any(letter in target for letter in "*?["):
            return [symbols[name] for name in target.split(",")]
        matches = re.compile(fnmatch.translate(target)).match
        found = [address for name, address in self.kernel.traceable.items() if matches(name)]
        if not found:
            raise NoSymbol(target)
        return found

    def _btf_ids(self, target: str) -> tuple[int, ...]:
        layout = self.kernel.layout
        names = target.split(",")
        if any(letter in target for letter in "*?["):
            names = [name for name in self.kernel.traceable if fnmatch.fnmatchcase(name, target)]
            return tuple(sorted({number for name in names if (number := layout.function(name))}))
        found = []
        for name in names:
            number = layout.function(name)
            if number is None:
                raise NoSymbol(name)
            found.append(number)
        return tuple(sorted(found))

    # Objects --------------------------------------------------------------------------------------------------------

    def resolve(
        self,
        obj: BpfObject,
        names: Collection[str] | None = None,
        targets: Mapping[str, str] | None = None,
        kconfig: Mapping[str, int | str] | None = None,
    ) -> tuple[BpfProgram, ...]:
        """An object's programs for this kernel: relocations against its BTF, symbols and configuration. ObjectError."""
        kernel = self.kernel
        symbols = {name: address for name in obj.symbols if (address := kernel.symbols.get(name)) is not None}
        known = {**kernel.kconfig(), **(kconfig or {})} if obj.needs_configuration else {}
        return obj.resolve(kernel.btf, names=names, targets=targets, kconfig=known, ksyms=symbols)

    def open(
        self,
        obj: BpfObject,
        names: Collection[str] | None = None,
        *,
        targets: Mapping[str, str] | None = None,
        kconfig: Mapping[str, int | str] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> KernelObject:
        """Load an object: all programs, or on any error none."""
        programs = self.resolve(obj, names, targets, kconfig)
        defined = dict(obj.maps)
        for name, value in (data or {}).items():
            if name not in obj.variables:
                raise TrampolineError(f"{obj.name} has no global variable {name!r}")
            variable = obj.variables[name]
            spec = defined[variable.map]
            content = bytearray(spec.initial.ljust(spec.value_size, b"\0"))
            encoded = format_of(obj.btf, variable.type_id, variable.size).encode(value)
            content[variable.offset : variable.offset + variable.size] = encoded
            defined[variable.map] = replace(spec, initial=bytes(content))
        programs = tuple(
            replace(one, maps=tuple(defined.get(spec.name, spec) for spec in one.maps)) for one in programs
        )
        maps = self.maps_of(programs, defined, obj.btf)
        loaded: dict[str, KernelProgram] = {}
        try:
            for program in programs:
                loaded[program.name] = self.load(program, maps)
            self._fill_slots(obj, maps, loaded)
        except BaseException:
            for fd in (*(one.fd for one in loaded.values()), *maps.fds.values()):
                self.kernel.close_descriptor(fd)
            raise
        return KernelObject(self, obj, loaded, maps)

    def _fill_slots(self, obj: BpfObject, maps: KernelMaps, programs: Mapping[str, KernelProgram]) -> None:
        for name, slots in obj.initial_slots.items():
            for index, held in slots.items():
                fd = programs[held].fd if held in programs else maps.fds.get(held)
                if fd is not None:
                    self.calls.update(maps.fds[name], struct.pack("<I", index), struct.pack("<I", fd))

    def close_fds(self, fds: Collection[int]) -> None:
        """Close descriptors and let grace periods end."""
        for fd in fds:
            self.kernel.close_descriptor(fd)


class KernelVariables(MutableMapping[str, Any]):
    """Global variables of an object, read and written by the kernel's system calls for its maps."""

    def __init__(self, calls: SystemCalls, obj: BpfObject, maps: KernelMaps) -> None:
        self._calls, self._object, self._maps = calls, obj, maps

    def _content(self, name: str) -> tuple[int, bytes]:
        spec = self._maps.specs[name]
        fd = self._maps.fds[name]
        found = self._calls.look_up(fd, bytes(spec.key_size), spec.value_size)
        if found is None:
            raise TrampolineError(f"map {name} has no element")
        return fd, found

    def __getitem__(self, name: str) -> Any:
        variable = self._object.variables[name]
        _fd, content = self._content(variable.map)
        shape = format_of(self._object.btf, variable.type_id, variable.size)
        return shape.decode(content[variable.offset : variable.offset + variable.size])

    def __setitem__(self, name: str, value: Any) -> None:
        variable = self._object.variables[name]
        fd, content = self._content(variable.map)
        encoded = format_of(self._object.btf, variable.type_id, variable.size).encode(value)
        changed = content[: variable.offset] + encoded + content[variable.offset + variable.size :]
        self._calls.update(fd, bytes(self._maps.specs[variable.map].key_size), changed)

    def __delitem__(self, name: str) -> None:
        raise TypeError("a global variable stays")

    def __iter__(self) -> Iterator[str]:
        return (name for name, variable in self._object.variables.items() if variable.map in self._maps.fds)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class KernelObject:
    """A compiled object in a real kernel; a context manager that detaches and closes everything."""

    def __init__(
        self, loader: KernelLoader, obj: BpfObject, programs: dict[str, KernelProgram], maps: KernelMaps
    ) -> None:
        self._loader, self._object, self._maps = loader, obj, maps
        self.programs = programs
        """Its programs by name."""
        self.data = KernelVariables(loader.calls, obj, maps)
        """Its global variables."""
        self.links: list[KernelLink] = []

    def attach(self, name: str, where: str | None = None, cookie: int = 0) -> KernelLink:
        """Attach one program. Refused, TrampolineError."""
        link = self._loader.kernel.attach(self.programs[name], where, cookie)
        self.links.append(link)
        return link

    def attach_all(self, cookies: Mapping[str, int] | None = None) -> list[KernelLink]:
        """Attach every program as its section says. Refused, TrampolineError."""
        return [self.attach(name, cookie=(cookies or {}).get(name, 0)) for name in self.programs]

    @cached_property
    def _data_maps(self) -> set[str]:
        return {spec.name for spec in self._object.data.values()}

    def maps(self) -> dict[str, dict[Any, Any]]:
        """Contents of its hash and array maps."""
        shown: dict[str, dict[Any, Any]] = {}
        calls, btf = self._loader.calls, self._object.btf
        for name, fd in self._maps.fds.items():
            spec = self._maps.specs[name]
            if name in self._data_maps or spec.type not in _SHOWN:
                continue
            key, value = format_of(btf, spec.key_type, spec.key_size), format_of(btf, spec.value_type, spec.value_size)
            shown[name] = {
                key.decode(one): value.decode(content)
                for one in calls.keys(fd, spec.key_size)
                if (content := calls.look_up(fd, one, spec.value_size)) is not None
            }
        return shown

    def close(self) -> None:
        """Detach everything and close programs and maps."""
        fds = [fd for link in reversed(self.links) for fd in (link.fd, link.event_fd) if fd >= 0]
        fds += [one.fd for one in self.programs.values()]
        fds += self._maps.fds.values()
        if self._maps.btf_fd:
            fds.append(self._maps.btf_fd)
        self.links.clear()
        self._loader.close_fds(fds)

    def __enter__(self) -> KernelObject:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _map_name(name: str) -> str:
    """A name as ``bpf_obj_name_cpy`` takes it."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.") else "_" for letter in name[:15])
