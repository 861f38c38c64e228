"""One gdb session: its packets and their replies.

"Packets" and "General Query Packets" of the appendix "gdb Remote Serial Protocol" in gdb's manual. The reply to an
unknown packet is empty, as the protocol requires.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asm.encodings import INT3
from emu.debug import Debugger
from emu.debug.breakpoints import AtAddress, Breakpoint, DataAccess
from emu.errors import EmuError
from emu.gdb.errors import GdbError, NoMemory
from emu.gdb.monitor import Monitor
from emu.gdb.motion import Motion, ResumeAction
from emu.gdb.packets import MAX_PAYLOAD, escape
from emu.gdb.registers import NAME, REGISTERS, all_hex, register_hex, target_description
from emu.gdb.symbol_file import is_executable
from emu.gdb.thread_list import extra_info, threads_xml
from emu.machine.address_map import ADDRESS_MASK, PAGE_SIZE
from emu.threads.thread import TaskThread

FEATURES = (
    f"PacketSize={MAX_PAYLOAD:x};QStartNoAckMode+;qXfer:features:read+;qXfer:threads:read+;vContSupported+;swbreak+;"
    "hwbreak+;ReverseStep+;ReverseContinue+"
)
_HEX = "[0-9a-fA-F]+"
_MEMORY = re.compile(rf"({_HEX}),({_HEX})")
_STORE = re.compile(rf"({_HEX}),({_HEX}):(.*)", re.DOTALL)
_POINT = re.compile(rf"([0-9]),({_HEX}),({_HEX})(?:;.*)?", re.DOTALL)
_XFER = re.compile(rf"([^:]*):({_HEX}),({_HEX})")
_ACTION = re.compile(rf"([cs])(?::(-1|{_HEX}))?|[CS]({_HEX})(?::(-1|{_HEX}))?|r({_HEX}),({_HEX})(?::(-1|{_HEX}))?")
_WATCH_SIGNS = {2: ("w", "watch"), 3: ("r", "rwatch"), 4: ("rw", "awatch")}
_ANY, _ALL = 0, -1


class GdbSession:
    """Answers packets by a debugger."""

    def __init__(
        self,
        debugger: Debugger,
        motion: Motion,
        monitor: Monitor,
        stop_acknowledging: Callable[[], None],
    ) -> None:
        self._debugger, self._motion, self._monitor = debugger, motion, monitor
        self._stop_acknowledging = stop_acknowledging
        self._looked_at = _ANY
        """The thread for register packets (``Hg``)."""
        self._points: dict[tuple[int, int, int], Breakpoint] = {}
        """Breakpoints that gdb has inserted, by type, address and size: two types may be one to the debugger."""
        self.is_over = False
        """True if gdb has detached, or killed the target."""

    def answer(self, payload: bytes) -> bytes | None:
        """The reply to a packet; None for no reply. Errors of the packet are in the reply."""
        head, text = payload[:1], payload.decode("latin-1")
        try:
            if head == b"X":
                return self._store(text[1:], payload)
            reply = self._of_word(text) if head in b"qQvb" else self._of_letter(text)
        except GdbError as error:
            return error.reply.encode("utf-8", "replace")
        except EmuError as error:
            return f"E.{str(error).splitlines()[0]}".encode("utf-8", "replace")
        return reply.encode("latin-1") if isinstance(reply, str) else reply

    def close(self) -> None:
        """Remove gdb's breakpoints."""
        for found in list(self._motion.signs):
            self._debugger.remove(found)
        self._motion.signs.clear()

    # Packets of one letter ------------------------------------------------------------------------------------------

    def _of_letter(self, text: str) -> str | None:
        rest = text[1:]
        match text[:1]:
            case "?":
                return self._stopped(self._motion.now())
            case "g":
                return all_hex(self._registers())
            case "G":
                return self._set_all(rest)
            case "p":
                return register_hex(self._number(rest), self._registers())
            case "P":
                number, _, value = rest.partition("=")
                self._set_register(self._number(number), _bytes(value))
                return "OK"
            case "m":
                return self._memory(rest).hex()
            case "M":
                return self._write(rest)
            case "H":
                return self._choose(rest)
            case "T":
                self._motion.thread(_thread(rest))
                return "OK"
            case "z" | "Z":
                return self._breakpoint(rest, insert=text[0] == "Z")
            case "c" | "s":
                if rest:
                    self._set_register(self._number_of("rip"), _address(rest).to_bytes(8, "little"))
                return self._resume([ResumeAction(text[0])])
            case "C" | "S":
                return self._resume([ResumeAction(text[0].lower())])
            case "D" | "k":
                self.is_over = True
                if text[0] == "k":
                    self._debugger.goto(self._motion.first)
                return "OK" if text[0] == "D" else None
        return ""

    # Packets that begin with a word ---------------------------------------------------------------------------------

    def _of_word(self, text: str) -> str | bytes | None:
        name, _, rest = re.match(r"([^:,;]*)([:,;]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        match name:
            case "qSupported":
                return FEATURES
            case "QStartNoAckMode":
                self._stop_acknowledging()
                return "OK"
            case "qAttached":
                return "1"
            case "qC":
                return f"QC{self._debugger.thread.number:x}"
            case "qfThreadInfo":
                return "m" + ",".join(f"{thread.number:x}" for thread in self._debugger.threads)
            case "qsThreadInfo":
                return "l"
            case "qThreadExtraInfo":
                return extra_info(self._motion.thread(_thread(rest))).encode().hex()
            case "qXfer":
                return self._transfer(rest)
            case "qRcmd":
                return self._command(_bytes(rest).decode("utf-8", "replace"))
            case "qSymbol":
                return "OK"
            case "vCont?":
                return "vCont;c;C;s;S;r"
            case "vCont":
                return self._resume([_action(one) for one in rest.split(";")])
            case "vKill":
                self.is_over = True
                self._debugger.goto(self._motion.first)
                return "OK"
            case "bs":
                return self._stopped(self._motion.step_back(self._looked_at))
            case "bc":
                return self._stopped(self._motion.run_back())
        return ""

    def _transfer(self, rest: str) -> bytes | str:
        kind, _, rest = rest.partition(":")
        if kind not in ("features", "threads"):
            return ""
        operation, _, rest = rest.partition(":")
        asked = _XFER.fullmatch(rest)
        if operation != "read" or asked is None:
            return "E00"
        annex, offset, size = asked[1], _address(asked[2]), _address(asked[3])
        if annex != (NAME if kind == "features" else ""):
            return "E00"
        content = target_description() if kind == "features" else threads_xml(self._debugger.threads)
        # Escapes may double the sent data.
        part = content[offset : offset + min(size, MAX_PAYLOAD // 2 - 1)]
        return (b"m" if offset + len(part) < len(content) else b"l") + escape(part)

    def _command(self, line: str) -> str:
        self._monitor.run(line)
        return "OK"

    # Threads --------------------------------------------------------------------------------------------------------

    def _choose(self, rest: str) -> str:
        number = _thread(rest[1:])
        if number > _ANY:
            self._motion.thread(number)
        if rest[:1] == "g":
            self._looked_at = max(number, _ANY)
        return "OK"

    def _resume(self, actions: list[ResumeAction]) -> str:
        return self._stopped(self._motion.resume(actions, self._looked_at))

    def _stopped(self, reply: str) -> str:
        self._looked_at = self._motion.told
        return reply

    # Registers ------------------------------------------------------------------------------------------------------

    def _registers(self) -> dict[str, int]:
        return self._motion.registers(self._motion.thread(self._looked_at))

    @staticmethod
    def _number(text: str) -> int:
        number = _number(text)
        if number >= len(REGISTERS):
            raise GdbError(f"no register {number}: there are {len(REGISTERS)}")
        return number

    @staticmethod
    def _number_of(name: str) -> int:
        return next(number for number, register in enumerate(REGISTERS) if register.name == name)

    def _set_all(self, digits: str) -> str:
        sizes = [2 * register.size for register in REGISTERS]
        if len(digits) != sum(sizes):
            raise GdbError(f"{len(digits)} digits for all registers, which have {sum(sizes)}")
        before, at = self._registers(), 0
        for number, size in enumerate(sizes):
            value, at = digits[at : at + size], at + size
            if value.lower() != register_hex(number, before) and "x" not in value:
                self._set_register(number, _bytes(value))
        return "OK"

    def _set_register(self, number: int, value: bytes) -> None:
        debugger, register = self._debugger, REGISTERS[number]
        thread = self._motion.thread(self._looked_at)
        if register.known_as is None or not isinstance(thread, TaskThread):
            raise GdbError(f"{register.name} of thread {thread.number} can't be set")
        if len(value) != register.size:
            raise GdbError(f"{register.name} has {register.size} bytes, not {len(value)}")
        with self._looking():
            debugger.set_register(register.known_as, int.from_bytes(value, "little"))

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Within the block, the debugger's current thread is the one that gdb selected."""
        debugger = self._debugger
        current = debugger.thread
        debugger.select(self._motion.thread(self._looked_at))
        try:
            yield
        finally:
            debugger.select(current)

    # Memory ---------------------------------------------------------------------------------------------------------

    def _memory(self, rest: str) -> bytes:
        """The mapped bytes from an address on; NoMemory if there are none."""
        found = _MEMORY.fullmatch(rest)
        if found is None:
            raise GdbError(f"m{rest}: expected an address and a size")
        with self._looking():
            return self._read(_address(found[1]), min(_address(found[2]), MAX_PAYLOAD // 2 - 1))

    def _read(self, address: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            at = address + len(data) & ADDRESS_MASK
            try:
                data += self._debugger.read(at, min(size - len(data), PAGE_SIZE - at % PAGE_SIZE))
            except EmuError as error:
                if not data:
                    raise NoMemory(str(error)) from error
                break
        return data

    def _write(self, rest: str) -> str:
        found = _STORE.fullmatch(rest)
        if found is None:
            raise GdbError("M: expected an address, a size and digits")
        return self._put(_address(found[1]), _address(found[2]), _bytes(found[3]))

    def _store(self, rest: str, payload: bytes) -> bytes:
        found = _STORE.fullmatch(rest)
        try:
            if found is None:
                raise GdbError("X: expected an address, a size and bytes")
            data = payload[1 + found.start(3) :]
            return self._put(_address(found[1]), _address(found[2]), data).encode()
        except GdbError as error:
            return error.reply.encode("utf-8", "replace")

    def _put(self, address: int, size: int, data: bytes) -> str:
        if size != len(data):
            raise GdbError(f"{len(data)} bytes were sent, {size} announced")
        if not data:
            return "OK"
        machine = self._debugger.kernel.machine
        stubs = machine.host_calls
        if address < stubs.address + stubs.size and stubs.address < address + len(data):
            raise NoMemory("the stubs of host calls can't be changed")
        if data == INT3 and is_executable(machine, address):
            # gdb's own breakpoint, inserted by a memory write: other CPUs would trap on it.
            raise NoMemory("breakpoints are kept outside of the guest's text")
        try:
            self._debugger.write(address, data)
        except EmuError as error:
            raise NoMemory(str(error)) from error
        return "OK"

    # Breakpoints ----------------------------------------------------------------------------------------------------

    def _breakpoint(self, rest: str, *, insert: bool) -> str:
        """Add a breakpoint to the debugger's list, or remove it; repetitions are allowed."""
        found = _POINT.fullmatch(rest)
        if found is None:
            raise GdbError(f"Z{rest}: expected a type, an address and a kind")
        kind, address, size = int(found[1]), _address(found[2]), _address(found[3])
        point: Breakpoint
        if kind in (0, 1):
            point, sign = AtAddress(address), ("swbreak:;", "hwbreak:;")[kind]
        elif kind in _WATCH_SIGNS:
            how, name = _WATCH_SIGNS[kind]
            point, sign = DataAccess(address, size, how), f"{name}:{address:x};"
        else:
            return ""
        signs, points, key = self._motion.signs, self._points, (kind, address, size)
        if insert:
            if point not in signs:
                self._debugger.add(point)
            points[key], signs[point] = point, sign
        elif points.pop(key, None) is not None and point not in points.values():
            self._debugger.remove(point)
            del signs[point]
        return "OK"


def _number(text: str) -> int:
    if not re.fullmatch(_HEX, text):
        raise GdbError(f"{text!r} is not a hexadecimal number")
    return int(text, 16)


def _address(text: str) -> int:
    """A number of at most 64 bits."""
    number = _number(text)
    if number > ADDRESS_MASK:
        raise GdbError(f"{number:#x} has more than 64 bits")
    return number


def _thread(text: str) -> int:
    return _ALL if text == "-1" else _number(text)


def _bytes(digits: str) -> bytes:
    if not re.fullmatch(f"({_HEX})?", digits) or len(digits) % 2:
        raise GdbError(f"{digits[:40]!r} is not hexadecimal bytes")
    return bytes.fromhex(digits)


def _action(text: str) -> ResumeAction:
    """One action of vCont; signals are not delivered."""
    found = _ACTION.fullmatch(text)
    if found is None:
        raise GdbError(f"vCont: no action {text!r}")
    plain, thread, _, of_signal, start, end, of_range = found.groups()
    number = thread or of_signal or of_range
    of = None if number in (None, "-1") else int(number, 16)
    if start is not None:
        return ResumeAction("s", of, (_address(start), _address(end)))
    return ResumeAction(plain or text[0].lower(), of)
