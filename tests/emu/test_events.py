"""The stream of events: events that are recorded together are as if each had been by itself."""

from emu.events import CpuSerialized, EventStream, PokePhase, TextPatched, TextPatches

PATCHES = TextPatches(PokePhase.TAIL, (0x1001, 0x2001), (b"a", b"b"), (b"c", b"d"))
EACH = [TextPatched(PokePhase.TAIL, 0x1001, b"a", b"c"), TextPatched(PokePhase.TAIL, 0x2001, b"b", b"d")]


def test_events_recorded_together_are_read_one_by_one():
    stream = EventStream()
    stream.emit(CpuSerialized(0))
    stream.emit_all(PATCHES)
    stream.emit(CpuSerialized(1))
    assert list(stream) == [CpuSerialized(0), *EACH, CpuSerialized(1)] == list(stream)
    assert len(stream) == 4
    stream.clear()
    assert (list(stream), len(stream)) == ([], 0)


def test_readers_are_told_of_each_until_they_unsubscribe():
    stream = EventStream()
    told = []
    assert not stream.has_readers
    end = stream.subscribe(told.append)
    stream.emit_all(PATCHES)
    assert stream.has_readers
    end()
    stream.emit_all(PATCHES)
    assert told == EACH
