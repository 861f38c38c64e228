"""Packets of gdb's remote serial protocol: ``$payload#checksum``, acknowledgements, and the interrupt byte.

"Overview" and "Packet Acknowledgment" of the appendix "gdb Remote Serial Protocol" in gdb's manual.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PAYLOAD = 1 << 16
"""Maximum bytes of a packet, including escapes: the value of ``PacketSize``."""
INTERRUPT = 0x03

_START, _END, _ESCAPE, _REPEAT = b"$#}*"
_FLIP = 0x20
_ESCAPED = re.compile(rb"[$#}*]")
_ESCAPES = re.compile(rb"}(.)", re.DOTALL)
_RUN = re.compile(rb"(.)\1{3,97}", re.DOTALL)
_NOT_COUNTS = b"#$+-"
"""Characters that must not encode a run's length."""


@dataclass(frozen=True, slots=True)
class Packet:
    """A complete packet; ``payload`` without escapes."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """A packet that can't be accepted, and the reason. ``again``: sending it again may help."""

    reason: str
    again: bool


class Signal(enum.Enum):
    """Input between packets."""

    ACK = "+"
    NAK = "-"
    INTERRUPT = "interrupt"


Arrival = Packet | Broken | Signal


def escape(data: bytes) -> bytes:
    """Data as it appears in a packet: special characters escaped."""
    return _ESCAPED.sub(lambda found: bytes((_ESCAPE, found[0][0] ^ _FLIP)), data)


def unescape(data: bytes) -> bytes:
    """A packet's content without escapes. ValueError if an escape is cut off."""
    if data.endswith(b"}") and not (len(data) - len(data.rstrip(b"}"))) % 2 == 0:
        raise ValueError("an escape is cut off")
    return _ESCAPES.sub(lambda found: bytes((found[1][0] ^ _FLIP,)), data)


def packet(payload: bytes) -> bytes:
    """A packet as it is sent: ``payload``, already escaped where necessary, with runs of one byte shortened, and the
    checksum.
    """
    body = _RUN.sub(_shortened, payload)
    return b"$" + body + b"#%02x" % (sum(body) & 0xFF)


def _shortened(found: re.Match[bytes]) -> bytes:
    """Run-length encoding ``x*n``: n - 29 more of x."""
    byte, more = found[1], len(found[0]) - 1
    if byte == b"}" or byte == b"*":
        return found[0]
    rest = b""
    while bytes((more + 29,))[0] in _NOT_COUNTS:
        more -= 1
        rest += byte
    return byte + bytes((_REPEAT, more + 29)) + rest


class Arrivals:
    """Assembles packets from bytes, however these are split."""

    def __init__(self, limit: int = MAX_PAYLOAD) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self._too_long = False
        """The packet under way is longer than the limit: its bytes are discarded."""

    def feed(self, data: bytes) -> Iterator[Arrival]:
        """Add bytes; returns what they complete. Unknown bytes outside of packets are ignored."""
        pending = self._bytes
        pending += data
        while pending:
            if pending[0] != _START:
                found = _SIGNALS.get(pending[0])
                del pending[0]
                if found is not None:
                    yield found
                continue
            end = pending.find(_END)
            # A packet start in the middle of another one: the first was cut off.
            again = pending.find(_START, 1, end if end >= 0 else len(pending))
            if again > 0:
                del pending[:again]
                self._too_long = False
                yield Broken("a packet was cut off by another one", again=True)
                continue
            if end < 0 or len(pending) < end + 3:
                if len(pending) > self._limit + 4:
                    self._too_long = True
                    del pending[1 : len(pending) - 2]
                return
            yield self._taken(bytes(pending[1:end]), bytes(pending[end + 1 : end + 3]))
            del pending[: end + 3]

    def _taken(self, body: bytes, checksum: bytes) -> Arrival:
        too_long, self._too_long = self._too_long or len(body) > self._limit, False
        if too_long:
            return Broken(f"the packet has more than {self._limit} bytes", again=False)
        try:
            wanted = int(checksum, 16) if checksum.isalnum() else -1
        except ValueError:
            wanted = -1
        if wanted != sum(body) & 0xFF:
            return Broken(f"checksum {checksum.decode('latin-1')!r} is not {sum(body) & 0xFF:02x}", again=True)
        try:
            return Packet(unescape(body))
        except ValueError as error:
            return Broken(str(error), again=False)


_SIGNALS = {ord("+"): Signal.ACK, ord("-"): Signal.NAK, INTERRUPT: Signal.INTERRUPT}
