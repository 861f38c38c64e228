"""Server for gdb: one client at a time, on loopback."""

from collections.abc import Callable

from emu.debug import Debugger
from emu.gdb.errors import GdbError
from emu.gdb.monitor import Monitor, MonitorCommand
from emu.gdb.motion import Motion
from emu.gdb.packets import Broken, Packet
from emu.gdb.session import GdbSession
from emu.gdb.wire import Closed, Opened, Shut, Wire

_MOVES = (b"v", b"c", b"C", b"s", b"S", b"b")
"""Prefixes of packets that move threads: only they allow output meanwhile."""
_OUTPUT = 1000
"""Characters of output in one packet."""


class Server:
    """Serves a debugger at ``host`` (127.0.0.1 or ::1) and ``port``; 0 is a free one.

    ``on_stop`` is called after each move, and may return a text for gdb to print. GdbError for an address that is not
    loopback, or on which it can't listen.
    """

    def __init__(
        self,
        debugger: Debugger,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        on_stop: Callable[[], str] = str,
    ) -> None:
        self._debugger, self._on_stop = debugger, on_stop
        self._wire = Wire(host, port, debugger.interrupt)
        self.motion = Motion(debugger, self.say, lambda: self._wire.is_urgent)
        self.commands: list[MonitorCommand] = []
        """Additional ``monitor`` commands."""
        self.host, self.port = self._wire.host, self._wire.port

    def serve(self, *, once: bool = False) -> None:
        """Serve clients, one after the other, until ``close``; ``once``: only the first."""
        while not isinstance(arrived := self._wire.receive(), Shut):
            if isinstance(arrived, Opened) and (self._session() or once):
                return

    def say(self, text: str) -> None:
        """Print in gdb, which must be waiting for a stop or a command's end."""
        line = text if text.endswith("\n") or not text else f"{text}\n"
        for at in range(0, len(line), _OUTPUT):
            self._wire.send(b"O" + line[at : at + _OUTPUT].encode().hex().encode())

    def close(self) -> None:
        """Shut down; may be called once, from any thread."""
        self._wire.close()

    def _session(self) -> bool:
        """Serve one client; True if the server must shut down."""
        monitor = Monitor(self.commands, self.say)
        session = GdbSession(self._debugger, self.motion, monitor, self._wire.stop_acknowledging)
        try:
            while not isinstance(arrived := self._wire.receive(), Closed | Shut):
                if isinstance(arrived, Packet):
                    self._answer(session, arrived.payload)
                elif isinstance(arrived, Broken):
                    self._wire.send(GdbError(arrived.reason).reply.encode())
        finally:
            session.close()
        return isinstance(arrived, Shut)

    def _answer(self, session: GdbSession, payload: bytes) -> None:
        before = self._debugger.position
        try:
            reply = session.answer(payload)
        except Exception as error:  # a defect of the server: report it to gdb, which may continue
            text = f"unexpected {type(error).__name__}: {error}"
            if payload.startswith(b"qRcmd"):
                self.say(text)
                text = ""
            reply = GdbError(text).reply.encode() if text else b"E01"
        if self._debugger.position != before and payload[:1] in _MOVES and (text := self._on_stop()):
            self.say(text)
        if reply is not None:
            self._wire.send(reply)
        if session.is_over:
            self._wire.hang_up()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
