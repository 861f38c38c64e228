import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from emu.debug import Debugger
from emu.gdb.commands import KernelCommands
from emu.gdb.server import Server
from emu.gdb.symbol_file import SymbolFile
from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from patience import PATIENCE

FUNCTIONS = (
    FunctionText("leaf", "lea rax, [rdi + 1]\nmov [rsi], rax\nmov rdx, [rsi]\nret", traceable=False),
    FunctionText(
        "saves",
        "push rbp\nmov rbp, rsp\npush rbx\nsub rsp, 0x18\nmov rbx, rdi\ncall leaf\nadd rax, rbx\n"
        "add rsp, 0x18\npop rbx\npop rbp\nret",
        traceable=False,
    ),
    FunctionText(
        "frameless",
        "push r12\npush rbx\nsub rsp, 8\nmov r12, rdi\nmov ebx, 7\ntest rdi, rdi\nje .Lout\ncall saves\n"
        ".Lout:\nadd rsp, 8\npop rbx\npop r12\nret",
        traceable=False,
    ),
    FunctionText("loops", "again:\nadd rax, 1\njmp again", traceable=False),
    FunctionText("faults", "mov rax, [rdi]\nret", traceable=False),
    FunctionText("sleeps", "call schedule\nmov eax, 5\nret", traceable=False),
)


class Client:
    """A client that speaks the protocol without gdb."""

    def __init__(self, address: tuple[str, int], *, acknowledges: bool = True) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = self.socket.makefile("rb")
        self.acknowledges = acknowledges

    def put(self, payload: bytes | str) -> None:
        data = payload.encode() if isinstance(payload, str) else payload
        self.socket.sendall(b"$" + data + b"#%02x" % (sum(data) & 0xFF))

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def signal(self) -> bytes:
        """The next byte outside of packets."""
        return self._read.read(1)

    def get(self) -> str:
        """The next packet's content, acknowledged; what is outside of packets is passed over."""
        while (byte := self._read.read(1)) != b"$":
            if not byte:
                raise EOFError
        body = b""
        while (byte := self._read.read(1)) != b"#":
            body += byte
        assert int(self._read.read(2), 16) == sum(body) & 0xFF
        if self.acknowledges:
            self.socket.sendall(b"+")
        body = re.sub(rb"(.)\*(.)", lambda found: found[1] * (found[2][0] - 28), body, flags=re.DOTALL)
        return body.decode("latin-1")

    def ask(self, payload: bytes | str) -> str:
        self.put(payload)
        return self.get()

    def stop(self) -> tuple[str, str]:
        """What was printed, and the stop reply."""
        printed = ""
        while (reply := self.get()).startswith("O") and reply != "OK":
            printed += bytes.fromhex(reply[1:]).decode()
        return printed, reply

    def resume(self, payload: str) -> tuple[str, str]:
        self.put(payload)
        return self.stop()

    def monitor(self, line: str) -> str:
        self.put(f"qRcmd,{line.encode().hex()}")
        printed, reply = self.stop()
        assert reply == "OK"
        return printed

    @property
    def is_closed(self) -> bool:
        with suppress(ConnectionResetError):
            return self._read.read(1) == b""
        return True

    def close(self) -> None:
        self._read.close()
        self.socket.close()


class Served:
    """A kernel that is served: ``begin`` makes its threads, from a thread of the host that then serves."""

    def __init__(self, kernel: Kernel, symbols: SymbolFile, begin: Callable[[Debugger], object], once: bool) -> None:
        self.kernel, self.symbols = kernel, symbols
        self.text = kernel.machine.read(kernel.layout.text, 4096)
        self.debugger = Debugger(kernel)
        begin(self.debugger)
        self.debugger.select(self.debugger.threads[0])
        self.server = Server(self.debugger)
        commands = KernelCommands(self.debugger, self.server.motion, symbols)
        self.server.commands += commands.commands()
        self.address = (self.server.host, self.server.port)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, args=(once,), daemon=True)
        self.thread.start()
        self.clients: list[Client] = []

    def _serve(self, once: bool) -> None:
        try:
            self.server.serve(once=once)
        except BaseException as error:  # for the test to see
            self.error = error

    def client(self, **options) -> Client:
        self.clients.append(Client(self.address, **options))
        return self.clients[-1]

    def gdb(self, path: str, *commands: str) -> str:
        """What gdb prints for a script of commands."""
        script = ["set pagination off", "set debuginfod enabled off", "set confirm off", "set width 0"]
        script += [f"target remote {self.address[0]}:{self.address[1]}", *commands]
        argv = [path, "-nx", "-batch"]
        for command in script:
            argv += ["-ex", command]
        argv.append(str(self.symbols.path))
        return subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False
        ).stdout

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
        self.thread.join(timeout=PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Served]]:
    served: list[Served] = []

    def make(begin: Callable[[Debugger], object], *, vcpus: int = 1, once: bool = True) -> Served:
        kernel = Kernel(entry=EntryLayout(endbr=False), vcpus=vcpus, functions=(AssemblyFunctions(FUNCTIONS),))
        symbols = SymbolFile(kernel, tmp_path / f"kernel{len(served)}.elf")
        served.append(Served(kernel, symbols, begin, once))
        return served[-1]

    yield make
    for one in served:
        one.close()
        assert one.error is None
        one.kernel.close()
