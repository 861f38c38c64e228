"""The connection: a loopback socket, one client at a time, read by a separate thread while the kernel runs."""

import contextlib
import ipaddress
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from emu.gdb.errors import GdbError
from emu.gdb.packets import Arrivals, Broken, Packet, Signal, packet

SEND_SECONDS = 10.0
"""Seconds after which a client that does not read its replies is dropped."""
_WAITING = 8
"""Number of waiting clients that get a refusal; more are disconnected at once."""
_CHUNK = 1 << 16
_REMIND_SECONDS = 0.05
_GRACE_SECONDS = 0.25
"""Seconds that a second client waits for the first to disconnect: hosts may report the two in either order."""
REFUSAL = b"E.another gdb is connected; one at a time"


@dataclass(frozen=True, slots=True)
class Opened:
    """A client has connected."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The client has disconnected."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The client requests a stop."""


@dataclass(frozen=True, slots=True)
class Shut:
    """The server no longer listens."""


Arrived = Shut | Opened | Closed | Interrupted | Packet | Broken


@dataclass(slots=True)
class _Waiting:
    """A waiting client: when it connected, and its input since then."""

    since: float
    said: bytes = b""
    arrivals: Arrivals | None = None
    """Its refusal, once it was sent."""


class Wire:
    """Listens on a loopback address, receives a client's packets, and sends to it.

    ``on_interrupt`` is called from another thread, repeatedly, after a client requests a stop or disconnects, until
    that is received. GdbError for an address that is not loopback, or on which it can't listen.
    """

    def __init__(self, host: str, port: int, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._listening = _listen(host, port)
        self.host, self.port = self._listening.getsockname()[:2]
        self._queue: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        """Held while sending to the client, or replacing it."""
        self._client: socket.socket | None = None
        self._connections = self._received = 0
        """Number of clients so far, and number that ``receive`` has returned."""
        self._arrivals = Arrivals()
        self._waiting: dict[socket.socket, _Waiting] = {}
        self._last = b""
        self._acknowledges = True
        self._closing = False
        self._urgent = 0
        """Number of interrupts that have arrived and were not received yet."""
        self._thread = threading.Thread(target=self._read, name="gdb", daemon=True)
        self._thread.start()

    def receive(self) -> Arrived:
        """The next input; waits for it."""
        arrived = self._queue.get()
        self._received += isinstance(arrived, Opened)
        if isinstance(arrived, Shut | Closed | Interrupted):
            with self._lock:
                self._urgent -= 1
        return arrived

    @property
    def is_urgent(self) -> bool:
        """True if the client has requested a stop, or disconnected, since the last received input."""
        return self._urgent > 0

    def send(self, payload: bytes) -> None:
        """Send a packet to the client of the last ``receive``; it is dropped if that has disconnected."""
        with self._lock:
            if self._received == self._connections:
                self._last = packet(payload)
                self._send(self._last)

    def stop_acknowledging(self) -> None:
        """Stop acknowledging packets, from the next one on (``QStartNoAckMode``)."""
        with self._lock:
            if self._received == self._connections:
                self._acknowledges = False

    def hang_up(self) -> None:
        """End the connection of the last ``receive``; ``Closed`` arrives."""
        with self._lock:
            if self._client is not None and self._received == self._connections:
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut down; a waiting ``receive`` returns ``Shut``."""
        self._put_urgent(Shut())
        self._closing = True
        self._wake.send(b"x")
        self._thread.join()
        for one in (self._client, self._listening, self._wake, self._woken, *self._waiting):
            if one is not None:
                one.close()
        self._selector.close()

    # The thread that reads ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while not self._closing:
            is_waiting = any(one.arrivals is None for one in self._waiting.values())
            ready = self._selector.select(_REMIND_SECONDS if self._urgent or is_waiting else None)
            if self._urgent:
                self._on_interrupt()
            # The disconnect comes before the next connection, in this order.
            for key, _ in sorted(ready, key=lambda found: found[0].fileobj is self._listening):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._listening:
                    self._accept()
                elif one is self._client:
                    self._receive(one)
                elif one in self._waiting:
                    self._hear(one)
            self._settle()

    def _accept(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:  # it has disconnected already
            return
        client.settimeout(SEND_SECONDS)
        if self._client is None:
            self._take_on(client)
        elif len(self._waiting) < _WAITING:
            self._waiting[client] = _Waiting(time.monotonic())
        else:
            client.close()
            return
        self._selector.register(client, selectors.EVENT_READ)

    def _take_on(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._client, self._arrivals = client, Arrivals()
            self._acknowledges, self._last = True, b""
            self._connections += 1
        self._queue.put(Opened())

    def _receive(self, client: socket.socket) -> None:
        try:
            data = client.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(client)
            with self._lock:
                self._client = None
            client.close()
            self._put_urgent(Closed())
            return
        for arrival in self._arrivals.feed(data):
            self._take(arrival)

    def _take(self, arrival: Packet | Broken | Signal) -> None:
        if arrival is Signal.INTERRUPT:
            self._put_urgent(Interrupted())
        elif arrival is Signal.NAK:
            with self._lock:
                self._send(self._last)
        elif not isinstance(arrival, Signal):
            again = isinstance(arrival, Broken) and arrival.again
            if self._acknowledges:
                with self._lock:
                    self._send(b"-" if again else b"+")
                if again:
                    return
            self._queue.put(arrival)

    def _put_urgent(self, arrived: Shut | Closed | Interrupted) -> None:
        with self._lock:
            self._urgent += 1
        self._queue.put(arrived)
        self._on_interrupt()

    def _hear(self, client: socket.socket) -> None:
        """Handle input or disconnection of a waiting client."""
        try:
            data = client.recv(_CHUNK)
        except OSError:
            data = b""
        if data:
            self._waiting[client].said += data
        else:
            self._forget(client)

    def _settle(self) -> None:
        """Accept the next waiting client once the previous one disconnected; else answer its packets with a refusal."""
        for client, waiting in list(self._waiting.items()):
            if self._client is None and waiting.arrivals is None:
                del self._waiting[client]
                self._take_on(client)
                for arrival in self._arrivals.feed(waiting.said):
                    self._take(arrival)
            elif waiting.said and time.monotonic() - waiting.since > _GRACE_SECONDS:
                waiting.arrivals = waiting.arrivals or Arrivals()
                packets = [one for one in waiting.arrivals.feed(waiting.said) if isinstance(one, Packet)]
                waiting.said = b""
                try:
                    client.sendall((b"+" + packet(REFUSAL)) * len(packets))
                except OSError:
                    self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        del self._waiting[client]
        client.close()

    def _send(self, data: bytes) -> None:
        if self._client is None:
            return
        try:
            self._client.sendall(data)
        except OSError:
            # The resulting end of the connection is read like any other.
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise GdbError(f"{host!r} is not an address: use 127.0.0.1 or ::1") from None
    if not address.is_loopback:
        raise GdbError(f"{host} is not loopback: a client may change memory, so only this host is served")
    if not 0 <= port < 1 << 16:
        raise GdbError(f"{port} is not a port: 0 to 65535")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise GdbError(f"{host} port {port}: {error.strerror}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
        listening.listen(_WAITING)
    except OSError as error:
        listening.close()
        raise GdbError(f"{host} port {port}: {error.strerror}") from None
    return listening
