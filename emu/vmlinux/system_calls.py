"""System calls of a kernel from the host: arguments in user memory, the kernel's own entry functions.

Layouts are those of include/uapi/linux/bpf.h and perf_event.h, which only grow: a kernel that does not know the end of
an attribute takes it as long as it is zero.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from typing import Protocol

from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.errors import VmlinuxError
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables
from emu.vmlinux.unbooted_memory import STACKS, USER

__all__ = ["AttachType", "Command", "ProgType", "Refused", "SystemCalls", "Verdict"]

_REGISTERS = STACKS + 0x2000
"""Where ``pt_regs`` of a system call lie: below the stacks."""
_PT_REGS = ("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax")
_ARGUMENTS = tuple(_PT_REGS.index(name) for name in ("di", "si", "dx", "r10", "r8", "r9"))
_ARGUMENTS_SIZE, LOG_SIZE = 16 << 20, 16 << 20
_PERF_SAMPLE_RAW = 0x400
_PERF_ATTR_SIZE = 112
_ANY_PROCESS = (1 << 64) - 1
_STATISTICS = ("processed ", "verification time ", "stack depth ")
"""Beginnings of the verifier's lines that say no reason (``print_verification_stats``)."""


class Command:
    """``enum bpf_cmd``."""

    MAP_CREATE, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MAP_DELETE_ELEM, MAP_GET_NEXT_KEY, MAP_FREEZE = 0, 1, 2, 3, 4, 22
    PROG_LOAD, PROG_ATTACH, PROG_TEST_RUN, OBJ_GET_INFO_BY_FD = 5, 8, 10, 15
    RAW_TRACEPOINT_OPEN, BTF_LOAD, LINK_CREATE = 17, 18, 28


class ProgType:
    """``enum bpf_prog_type``, as far as programs attach to functions and events."""

    SOCKET_FILTER, KPROBE, TRACEPOINT, RAW_TRACEPOINT, TRACING, EXT, LSM = 1, 2, 5, 17, 26, 28, 29


class AttachType:
    """``enum bpf_attach_type``, likewise."""

    TRACE_RAW_TP, TRACE_FENTRY, TRACE_FEXIT, MODIFY_RETURN, LSM_MAC = 23, 24, 25, 26, 27
    PERF_EVENT, TRACE_KPROBE_MULTI = 41, 42


class Refused(VmlinuxError):
    """A system call that the kernel refused. ``errno`` is positive; ``log`` is the verifier's, if there is one."""

    def __init__(self, what: str, number: int, log: str = "") -> None:
        name = errno.errorcode.get(number, str(number))
        lines = [line for line in log.strip().split("\n") if not line.startswith(_STATISTICS)]
        last = lines[-1] if lines else ""
        super().__init__(f"{what}: {name} ({os.strerror(number)})" + (f": {last}" if last else ""))
        self.errno = number
        self.log = log


@dataclass(frozen=True, slots=True)
class Verdict:
    """The kernel's answer to BPF_PROG_LOAD: ``errno`` 0 and a descriptor, or why not. ``log`` is the verifier's."""

    errno: int
    fd: int
    log: str

    @property
    def is_loaded(self) -> bool:
        """Whether the kernel took the program."""
        return not self.errno


class Caller(Protocol):
    """A kernel whose functions can be called."""

    @property
    def memory(self) -> PageTables:
        """Its memory."""
        ...

    @property
    def symbols(self) -> Kallsyms:
        """Its symbols."""
        ...

    @property
    def layout(self) -> BtfLayout:
        """Its types."""
        ...

    def call(self, function: str | int, *arguments: int) -> int:
        """What a function returns, as a signed 64-bit number."""
        ...


class SystemCalls:
    """bpf(2) and perf_event_open(2) of one kernel. Descriptors are the kernel's own.

    ``user``: guest address of user memory for arguments (``arguments_size`` bytes) and, after these, the verifier's
    log (``log_size``). ``registers``: kernel memory for a ``pt_regs``.
    """

    def __init__(
        self,
        machine: Caller,
        *,
        user: int = USER,
        arguments_size: int = _ARGUMENTS_SIZE,
        log_size: int = LOG_SIZE,
        registers: int = _REGISTERS,
    ) -> None:
        self.machine = machine
        self._user = self._next = user
        self._log, self._log_size, self._registers = user + arguments_size, log_size, registers

    def place(self, content: bytes) -> int:
        """Guest address of a copy in user memory; places are used again by the next system call's arguments."""
        at = self._next + 15 & ~15
        if at + len(content) > self._log:
            raise ValueError(f"{len(content)} bytes of arguments do not fit into user memory")
        self.machine.memory.write(at, content)
        self._next = at + len(content)
        return at

    def call(self, name: str, *arguments: int) -> int:
        """A system call's result: negative errors as they are. Raises what the machine's calls raise."""
        registers = [0] * 21
        for place, value in zip(_ARGUMENTS, arguments, strict=False):
            registers[place] = value & (1 << 64) - 1
        self.machine.memory.write(self._registers, struct.pack("<21Q", *registers))
        try:
            return self.machine.call(f"__x64_sys_{name}", self._registers)
        finally:
            self._next = self._user

    def bpf(self, command: int, attr: bytes, size: int | None = None) -> int:
        """bpf(2) with an attribute, padded with zeros to ``size`` bytes."""
        padded = attr.ljust(size or len(attr), b"\0")
        result = self.call("bpf", command, self.place(padded), len(padded))
        result &= 0xFFFFFFFF
        return result - (1 << 32) if result >> 31 else result

    def wanted(self, what: str, result: int, log: str = "") -> int:
        """A result that is no error. Raises :class:`Refused`."""
        if result < 0:
            raise Refused(what, -result, log)
        return result

    # Programs -------------------------------------------------------------------------------------------------------

    def load_program(
        self,
        instructions: bytes,
        kind: int,
        attach_type: int = 0,
        attach_btf_id: int = 0,
        *,
        name: str = "p",
        license: str = "GPL",
        flags: int = 0,
        target_fd: int = 0,
        log_level: int = 0,
        fd_array: tuple[int, ...] = (),
        btf_fd: int = 0,
        func_info: bytes = b"",
        line_info: bytes = b"",
    ) -> Verdict:
        """BPF_PROG_LOAD. ``func_info``, ``line_info``: records of 8 and 16 bytes; ``log_level`` as the kernel's."""
        memory = self.machine.memory
        if log_level:
            memory.write(self._log, bytes(64))
        code, license_at = self.place(instructions), self.place(license.encode() + b"\0")
        functions = self.place(func_info) if func_info else 0
        lines = self.place(line_info) if line_info else 0
        descriptors = self.place(struct.pack(f"<{len(fd_array)}i", *fd_array)) if fd_array else 0
        attr = struct.pack(
            "<IIQQIIQII16sIIIIQIIQIIIIQQ",
            kind, len(instructions) // 8, code, license_at,
            log_level, self._log_size if log_level else 0, self._log if log_level else 0,
            0, flags, name.encode()[:15], 0, attach_type,
            btf_fd, 8 if func_info else 0, functions, len(func_info) // 8,
            16 if line_info else 0, lines, len(line_info) // 16,
            attach_btf_id, target_fd, 0, 0, descriptors,
        )  # fmt: skip
        result = self.bpf(Command.PROG_LOAD, attr, 144)
        log = memory.text(self._log, self._log_size) if log_level else ""
        return Verdict(-result if result < 0 else 0, result, log)

    def load_btf(self, content: bytes) -> int:
        """BPF_BTF_LOAD: a descriptor. Raises :class:`Refused`."""
        at, size = self.place(content), len(content)
        result = self.bpf(Command.BTF_LOAD, struct.pack("<QQIII", at, 0, size, 0, 0), 32)
        log = ""
        if result < 0:
            self.machine.memory.write(self._log, bytes(64))
            attr = struct.pack("<QQIII", self.place(content), self._log, size, self._log_size, 1)
            result = self.bpf(Command.BTF_LOAD, attr, 32)
            log = self.machine.memory.text(self._log, self._log_size)
        return self.wanted("BPF_BTF_LOAD", result, log)

    # Maps -----------------------------------------------------------------------------------------------------------

    def create_map(
        self,
        kind: int,
        key: int,
        value: int,
        entries: int,
        *,
        flags: int = 0,
        name: str = "m",
        inner_fd: int = 0,
        btf_fd: int = 0,
        key_type: int = 0,
        value_type: int = 0,
        extra: int = 0,
    ) -> int:
        """BPF_MAP_CREATE: sizes in bytes, type ids of the BTF ``btf_fd``; a descriptor. Raises :class:`Refused`."""
        attr = struct.pack(
            "<IIIIIII16sIIIIIQ",
            kind, key, value, entries, flags, inner_fd, 0, name.encode()[:15],
            0, btf_fd, key_type, value_type, 0, extra,
        )  # fmt: skip
        return self.wanted(f"BPF_MAP_CREATE {name}", self.bpf(Command.MAP_CREATE, attr, 72))

    def freeze(self, fd: int) -> None:
        """BPF_MAP_FREEZE: no further writes by system calls. Raises :class:`Refused`."""
        self.wanted("BPF_MAP_FREEZE", self.bpf(Command.MAP_FREEZE, struct.pack("<I", fd)))

    def keys(self, fd: int, key_size: int, most: int = 1 << 16) -> list[bytes]:
        """A map's keys by BPF_MAP_GET_NEXT_KEY, ``most`` at most. Raises :class:`Refused`."""
        found: list[bytes] = []
        while len(found) < most:
            key_at = self.place(found[-1]) if found else 0
            next_at = self.place(bytes(key_size))
            result = self.bpf(Command.MAP_GET_NEXT_KEY, struct.pack("<IIQQ", fd, 0, key_at, next_at), 32)
            if result == -errno.ENOENT:
                break
            self.wanted("BPF_MAP_GET_NEXT_KEY", result)
            found.append(self.machine.memory.read(next_at, key_size))
        return found

    def look_up(self, fd: int, key: bytes, value_size: int) -> bytes | None:
        """BPF_MAP_LOOKUP_ELEM: the value's bytes, None where there is no such key."""
        key_at, value_at = self.place(key), self.place(bytes(value_size))
        result = self.bpf(Command.MAP_LOOKUP_ELEM, struct.pack("<IIQQQ", fd, 0, key_at, value_at, 0))
        if result == -errno.ENOENT:
            return None
        self.wanted("BPF_MAP_LOOKUP_ELEM", result)
        return self.machine.memory.read(value_at, value_size)

    def update(self, fd: int, key: bytes, value: bytes, flags: int = 0) -> None:
        """BPF_MAP_UPDATE_ELEM. Raises :class:`Refused`."""
        attr = struct.pack("<IIQQQ", fd, 0, self.place(key), self.place(value), flags)
        self.wanted("BPF_MAP_UPDATE_ELEM", self.bpf(Command.MAP_UPDATE_ELEM, attr))

    # Links ----------------------------------------------------------------------------------------------------------

    def create_link(self, program: int, attach_type: int, target: int = 0, extra: bytes = b"", flags: int = 0) -> int:
        """BPF_LINK_CREATE: a descriptor. ``extra`` is what the attach type has after flags. Raises :class:`Refused`."""
        attr = struct.pack("<IIII", program, target, attach_type, flags) + extra
        return self.wanted("BPF_LINK_CREATE", self.bpf(Command.LINK_CREATE, attr, 64))

    def create_multi_link(
        self,
        program: int,
        addresses: tuple[int, ...],
        *,
        attach_type: int = AttachType.TRACE_KPROBE_MULTI,
        on_return: bool = False,
        cookies: tuple[int, ...] = (),
    ) -> int:
        """A kprobe_multi, kretprobe_multi or kprobe_session link at guest addresses. Raises :class:`Refused`."""
        at = self.place(struct.pack(f"<{len(addresses)}Q", *addresses))
        cookies_at = self.place(struct.pack(f"<{len(cookies)}Q", *cookies)) if cookies else 0
        extra = struct.pack("<IIQQQ", int(on_return), len(addresses), 0, at, cookies_at)
        return self.create_link(program, attach_type, 0, extra)

    def create_tracing_multi_link(
        self, program: int, attach_type: int, type_ids: tuple[int, ...], cookies: tuple[int, ...] = ()
    ) -> int:
        """A tracing_multi link on functions by their BTF ids. Raises :class:`Refused`."""
        at = self.place(struct.pack(f"<{len(type_ids)}I", *type_ids))
        cookies_at = self.place(struct.pack(f"<{len(cookies)}Q", *cookies)) if cookies else 0
        return self.create_link(program, attach_type, 0, struct.pack("<QQI", at, cookies_at, len(type_ids)))

    def open_raw_tracepoint(self, program: int, name: str = "", cookie: int = 0) -> int:
        """BPF_RAW_TRACEPOINT_OPEN: a link's descriptor. Raises :class:`Refused`."""
        at = self.place(name.encode() + b"\0") if name else 0
        result = self.bpf(Command.RAW_TRACEPOINT_OPEN, struct.pack("<QIIQ", at, program, 0, cookie), 24)
        return self.wanted("BPF_RAW_TRACEPOINT_OPEN", result)

    def open_perf_event(self, kind: int, config: int = 0, config1: int = 0, config2: int = 0) -> int:
        """perf_event_open(2) on CPU 0 for every process, a sample each event. Raises :class:`Refused`."""
        attr = struct.pack(
            "<IIQQQQQIIQQ", kind, _PERF_ATTR_SIZE, config, 1, _PERF_SAMPLE_RAW, 0, 0, 1, 0, config1, config2
        ).ljust(_PERF_ATTR_SIZE, b"\0")
        result = self.call("perf_event_open", self.place(attr), _ANY_PROCESS, 0, _ANY_PROCESS, 0)
        return self.wanted("perf_event_open", result)

    def open_probe(self, function: str, offset: int = 0, *, on_return: bool = False) -> int:
        """A kprobe or kretprobe event by perf: PMU ``kprobe``, bytes from the function's first. Raises Refused."""
        machine = self.machine
        pmu = machine.memory.u32(machine.symbols["perf_kprobe"] + machine.layout.offset("pmu", "type"))
        return self.open_perf_event(pmu, int(on_return), self.place(function.encode() + b"\0"), offset)

    def open_tracepoint(self, event: str) -> int:
        """A trace event by perf, ``event`` being its name without the system's. Raises Refused."""
        machine = self.machine
        call = machine.symbols[f"event_{event}"]
        number = machine.memory.u32(call + machine.layout.offset("trace_event_call", "event.type"))
        return self.open_perf_event(2, number)

    def close(self, fd: int) -> int:
        """Take a descriptor out of the table; its file is released when what is put off runs."""
        return self.machine.call("close_fd", fd)
