"""A stamped trampoline is the generated one, byte for byte, whatever its shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_releases import RELEASES

from asm import DisplacementError
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.errors import KernelError
from trampoline.image.generator import ProgCall, TrampFlag, arch_prepare_bpf_trampoline
from trampoline.image.stamp import MOST_STAMPS, Stamps
from trampoline.tramp_links import TrampProgType, flags_of, links_of

TEXT, IMAGES, DIRECT_MAP = 0xFFFFFFFF81000000, 0xFFFFFFFFC0000000, 0xFFFF888000000000
NAMES = [f"__bpf_prog_{way}_recur" for way in ("enter", "exit")] + ["__bpf_tramp_enter", "__bpf_tramp_exit"]
SYMBOLS = {name: TEXT + 0x1000 * number for number, name in enumerate(NAMES)}

functions = st.integers(0x100, 0x100000).map(lambda n: TEXT + 16 * n)
ims = st.integers(1, 0x100000).map(lambda n: DIRECT_MAP + 64 * n)
places = st.integers(0x100, 0x100000).map(lambda n: IMAGES + 64 * n)
cookies = st.one_of(st.just(0), st.integers(0, (1 << 64) - 1), functions, ims)


@st.composite
def shapes(draw):
    flavour = RELEASES[draw(st.sampled_from(sorted(RELEASES)))].trampoline
    most = 12 if flavour.stack_args else 6
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 8, 8, 16]), max_size=6))
    model = FuncModel("traced", tuple(FuncArg(f"a{i}", "x", size, is_struct=size > 8) for i, size in enumerate(sizes)))
    if model.nr_regs > most:
        model = FuncModel.of_slots("traced", most)
    kinds = [TrampProgType.FENTRY, TrampProgType.FEXIT, TrampProgType.MODIFY_RETURN] + [
        TrampProgType.FSESSION
    ] * flavour.fsession
    attached = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))):
        session = kind is TrampProgType.FSESSION
        attached.append(
            (kind, ProgCall(
                f"p{number}", 0xFFFFC90000000000 + 0x1000 * number, IMAGES + 0x40 * number, draw(cookies),
                is_session=session, session_cookie=session and draw(st.booleans()),
            ))
        )  # fmt: skip
    links = links_of(attached)
    kept = draw(st.sampled_from([0, TrampFlag.TAIL_CALL_CTX, TrampFlag.SHARE_IPMODIFY]))
    boot = Boot(
        draw(st.sampled_from([None, TEXT + 0x800000])), draw(st.sampled_from([None, 0x35010, 0xFFFFFFFF83DC2000]))
    )
    flags = flags_of(flavour, calls_original=links.call_original, uses_func_ip=draw(st.booleans()), kept=kept)
    return flavour, boot, model, flags, links, draw(st.sampled_from([None, 0, 4]))


@given(shapes(), st.lists(st.tuples(functions, places, ims), min_size=2, max_size=4))
def test_stamped_is_generated(shape, targets):
    *what, site_offset = shape
    stamps = Stamps()
    for func_addr, address, im in targets:
        where = {"func_addr": func_addr, "address": address, "im": im, "symbols": SYMBOLS, "site_offset": site_offset}
        stamped = stamps.prepare(*what, **where)
        generated = arch_prepare_bpf_trampoline(*what, **where)
        assert stamped.image.code == generated.image.code
        assert tuple(stamped.image.lines) == tuple(generated.image.lines)
        assert stamped.image.symbols == generated.image.symbols
        for name in ("flags", "frame", "ip_after_call", "ip_epilogue", "skips"):
            assert getattr(stamped, name) == getattr(generated, name)


def prepare(stamps, **where):
    flavour = RELEASES["6.12"].trampoline
    links = links_of([(TrampProgType.FEXIT, ProgCall("p", 0xFFFFC90000000000, IMAGES))])
    at = {"func_addr": TEXT, "address": IMAGES, "im": DIRECT_MAP + 64, "symbols": SYMBOLS} | where
    flags = flags_of(flavour, calls_original=links.call_original, uses_func_ip=True)
    return stamps.prepare(flavour, Boot(), FuncModel.of_slots("f", 1), flags, links, **at)


def test_a_callee_out_of_reach_is_refused_like_the_first_time():
    stamps = Stamps()
    prepare(stamps)
    with pytest.raises(DisplacementError):
        prepare(stamps, address=0xFFFFC90000000000)


def test_a_function_in_another_half_of_the_address_space_has_other_bytes():
    stamps = Stamps()
    prepare(stamps)
    far = {"func_addr": 0xFFFFFFFF70000000, "address": 0xFFFFFFFF71000000}
    links = links_of([(TrampProgType.FEXIT, ProgCall("p", 0xFFFFC90000000000, IMAGES))])
    flags = flags_of(RELEASES["6.12"].trampoline, calls_original=links.call_original, uses_func_ip=True)
    expected = arch_prepare_bpf_trampoline(
        RELEASES["6.12"].trampoline, Boot(), FuncModel.of_slots("f", 1), flags, links, im=DIRECT_MAP + 64,
        symbols=SYMBOLS, **far
    )  # fmt: skip
    assert prepare(stamps, **far).image.code == expected.image.code


def test_what_the_generator_refuses_is_refused():
    stamps = Stamps()
    with pytest.raises(KernelError):
        stamps.prepare(
            RELEASES["6.1"].trampoline, Boot(), FuncModel.of_slots("f", 7), TrampFlag.RESTORE_REGS,
            links_of([(TrampProgType.FENTRY, ProgCall("p", 1 << 40, IMAGES))]),
            func_addr=TEXT, address=IMAGES, im=DIRECT_MAP, symbols=SYMBOLS,
        )  # fmt: skip


def test_not_more_shapes_are_kept_than_said():
    stamps = Stamps()
    links = links_of([(TrampProgType.FENTRY, ProgCall("p", 1 << 40, IMAGES))])
    for number in range(MOST_STAMPS + 5):
        stamps.prepare(
            RELEASES["6.12"].trampoline, Boot(call_depth_offset=number), FuncModel("f"), TrampFlag.RESTORE_REGS, links,
            func_addr=TEXT, address=IMAGES, im=DIRECT_MAP + 64, symbols=SYMBOLS,
        )  # fmt: skip
    assert len(stamps._known) == 5
