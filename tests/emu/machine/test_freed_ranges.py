from hypothesis import given
from hypothesis import strategies as st

from emu.machine.image_map import ImageMap

SPAN = 64
RANGES = st.tuples(st.booleans(), st.integers(0, SPAN - 1), st.integers(1, SPAN))


@given(st.lists(RANGES, max_size=30))
def test_freed_ranges_are_those_of_a_plain_list(steps):
    images, expected = ImageMap(), [None] * SPAN
    for number, (free, start, size) in enumerate(steps):
        end = min(start + size, SPAN)
        if free:
            images.set_freed(start, end, str(number))
        else:
            images.set_used(start, end)
        expected[start:end] = [str(number) if free else None] * (end - start)
        assert [images.freed(address) for address in range(SPAN)] == expected
