"""Which instructions releases have."""

import pytest
from kernel_releases import RELEASES

from trampoline.bpf.isa import parse

ALL = {"6.1", "6.12", "6.18", "7.2"}


@pytest.mark.parametrize(
    ("text", "releases"),
    [
        ("r0 = r1", ALL),
        ("r0 /= r1", ALL),
        ("r0 = be16 r0", ALL),
        ("goto +0", ALL),
        ("w0 = cmpxchg32_32(r1 +8, w0, w2)", ALL),
        ("r0 = *(u8 *)(r1 +0)", ALL),
        ("r0 = *(s8 *)(r1 +0)", ALL - {"6.1"}),
        ("r0 = (s32)r1", ALL - {"6.1"}),
        ("w0 = (s8)w1", ALL - {"6.1"}),
        ("r0 s/= 3", ALL - {"6.1"}),
        ("w0 s%= w1", ALL - {"6.1"}),
        ("r0 = bswap16 r0", ALL - {"6.1"}),
        ("gotol +0", ALL - {"6.1"}),
        ("r0 = load_acquire((u64 *)(r2 +8))", {"6.18", "7.2"}),
        ("store_release((u8 *)(r2 +8), w1)", {"6.18", "7.2"}),
    ],
)
def test_who_has_an_instruction(text, releases):
    (insn,) = parse(text)
    assert {name for name, found in RELEASES.items() if found.isa.has(insn)} == releases
