import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.gdb.packets import Arrivals, Broken, Packet, Signal, escape, packet, unescape


def expanded(body: bytes) -> bytes:
    """A packet's body with its runs written out, as gdb reads it."""
    return re.sub(rb"(.)\*(.)", lambda found: found[1] * (found[2][0] - 28), body, flags=re.DOTALL)


def sent(payload: bytes) -> bytes:
    """As gdb sends it: no runs."""
    return b"$" + payload + b"#%02x" % (sum(payload) & 0xFF)


def test_a_packet():
    assert packet(b"OK") == b"$OK#9a"
    assert packet(b"") == b"$#00"
    assert list(Arrivals().feed(b"$OK#9a")) == [Packet(b"OK")]


def test_runs_are_shortened():
    assert packet(b"0000") == b"$0* #7a"
    # 7 zeros would be 0*" + ..., 8 would need '#', 9 '$': both are cut.
    for count in range(1, 300):
        body = packet(b"a" + b"0" * count + b"b")[1:-3]
        assert expanded(body) == b"a" + b"0" * count + b"b"
        assert not re.search(rb"\*[#$+-]", body)


@given(st.binary(max_size=300))
def test_what_is_escaped_comes_back(data):
    assert unescape(escape(data)) == data
    assert not set(escape(data)) & set(b"$#*")
    assert expanded(packet(escape(data))[1:-3]) == escape(data)


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 7), st.sampled_from([b"", b"+", b"\x03", b"x"]))
def test_packets_however_they_are_cut_up(payloads, size, between):
    stream = between.join(sent(escape(payload)) for payload in payloads)
    arrivals = Arrivals()
    found = [one for at in range(0, len(stream), size) for one in arrivals.feed(stream[at : at + size])]
    assert [one.payload for one in found if isinstance(one, Packet)] == payloads
    meant = {b"+": Signal.ACK, b"\x03": Signal.INTERRUPT}.get(between)
    others = [one for one in found if not isinstance(one, Packet)]
    assert others == ([meant] * max(len(payloads) - 1, 0) if meant else [])


def test_an_interrupt_inside_a_packet_is_data():
    assert list(Arrivals().feed(sent(b"a\x03b") + b"\x03")) == [Packet(b"a\x03b"), Signal.INTERRUPT]


@pytest.mark.parametrize("checksum", [b"00", b"zz", b"-1", b" 9", b"9 ", b"+9", b"\xff\xff"])
def test_a_wrong_checksum_is_to_be_sent_again(checksum):
    (found,) = Arrivals().feed(b"$OK#" + checksum)
    assert isinstance(found, Broken)
    assert found.again


def test_a_packet_that_is_cut_off():
    first, second = Arrivals().feed(b"$m1234$g#67")
    assert isinstance(first, Broken)
    assert first.again
    assert second == Packet(b"g")


def test_a_packet_that_is_too_long():
    arrivals = Arrivals(limit=16)
    found = []
    for _ in range(50):
        found += arrivals.feed(b"x" if found else b"$" + b"x" * 9 if not arrivals._bytes else b"x" * 9)
    found += arrivals.feed(b"#00$g#67")
    assert [type(one) for one in found] == [Broken, Packet]
    assert "more than 16 bytes" in found[0].reason
    assert not found[0].again
    assert len(arrivals._bytes) == 0


def test_memory_of_a_packet_without_an_end_is_bounded():
    arrivals = Arrivals(limit=100)
    for _ in range(1000):
        assert list(arrivals.feed(b"$" if not arrivals._bytes else b"x" * 50)) == []
        assert len(arrivals._bytes) < 300


def test_exactly_the_limit():
    assert list(Arrivals(limit=16).feed(sent(b"x" * 16))) == [Packet(b"x" * 16)]
    assert isinstance(next(Arrivals(limit=16).feed(sent(b"x" * 17))), Broken)


def test_a_cut_off_escape():
    (found,) = Arrivals().feed(sent(b"a}"))
    assert isinstance(found, Broken)
    assert "escape" in found.reason
    assert list(Arrivals().feed(sent(b"a}}"))) == [Packet(b"a]")]
