"""The connection: a loopback socket, one client at a time, read by a thread of its own while the kernel runs."""

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
"""After which a client that does not read what it is sent is taken to be gone."""
_WAITING = 8
"""Clients beyond the first that are told so; more are hung up on at once."""
_CHUNK = 1 << 16
_REMIND_SECONDS = 0.05
_GRACE_SECONDS = 0.25
"""For which a client that came second waits for the first to be gone: hosts may tell of a new one before that."""
REFUSAL = b"E.another gdb is connected; one at a time"


@dataclass(frozen=True, slots=True)
class Opened:
    """A client has connected."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The client is gone."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The client asks to stop what runs."""


@dataclass(frozen=True, slots=True)
class Shut:
    """Nobody is listened to any more."""


Arrived = Shut | Opened | Closed | Interrupted | Packet | Broken


@dataclass(slots=True)
class _Waiting:
    """A client that came while there was another: when, and what it has said since."""

    since: float
    said: bytes = b""
    arrivals: Arrivals | None = None
    """What answers it, once it was told that it came second."""


class Wire:
    """Listens at an address of the host's own, hands over what a client sends, and sends to it.

    ``on_interrupt`` is called from another thread, again and again, from when a client asks to stop what runs, or
    vanishes, until that is received. GdbError for an address that is not loopback, or can't be listened at.
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
        """Held by who sends to the client, or changes who it is."""
        self._client: socket.socket | None = None
        self._connections = self._received = 0
        """How many there have been, and how many of them ``receive`` has told of."""
        self._arrivals = Arrivals()
        self._waiting: dict[socket.socket, _Waiting] = {}
        self._last = b""
        self._acknowledges = True
        self._closing = False
        self._urgent = 0
        """Interruptions that have arrived and were not received yet."""
        self._thread = threading.Thread(target=self._read, name="gdb", daemon=True)
        self._thread.start()

    def receive(self) -> Arrived:
        """What arrives next; waits for it."""
        arrived = self._queue.get()
        self._received += isinstance(arrived, Opened)
        if isinstance(arrived, Shut | Closed | Interrupted):
            with self._lock:
                self._urgent -= 1
        return arrived

    @property
    def is_urgent(self) -> bool:
        """Whether what runs is to stop: the client has asked for it, or is gone, since what was received last."""
        return self._urgent > 0

    def send(self, payload: bytes) -> None:
        """Send a packet to the client that ``receive`` told of; to nobody, where that is gone."""
        with self._lock:
            if self._received == self._connections:
                self._last = packet(payload)
                self._send(self._last)

    def stop_acknowledging(self) -> None:
        """From the next packet on nobody acknowledges any (``QStartNoAckMode``)."""
        with self._lock:
            if self._received == self._connections:
                self._acknowledges = False

    def hang_up(self) -> None:
        """End the connection that ``receive`` told of; ``Closed`` arrives."""
        with self._lock:
            if self._client is not None and self._received == self._connections:
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything; who waits for what arrives gets ``Shut``."""
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
            # Who hangs up makes room for who connects next, in this order.
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
        except OSError:  # it has hung up already
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
        """Somebody who came second has said something, or has gone."""
        try:
            data = client.recv(_CHUNK)
        except OSError:
            data = b""
        if data:
            self._waiting[client].said += data
        else:
            self._forget(client)

    def _settle(self) -> None:
        """Who waits comes next, where the one before is gone; else each of its packets is answered with a refusal."""
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
            # What comes of that, its end, is read like any other.
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise GdbError(f"{host!r} is no address: 127.0.0.1 and ::1 are") from None
    if not address.is_loopback:
        raise GdbError(f"{host} is not loopback: whoever connects may change memory, so only this host is served")
    if not 0 <= port < 1 << 16:
        raise GdbError(f"{port} is no port: 0 to 65535")
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
