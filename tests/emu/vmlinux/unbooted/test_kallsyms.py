import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from emu.vmlinux.errors import NoKallsyms, NoSymbol
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.kernel_image import KernelImage
from kallsyms_writer import kallsyms_tables

TEXT = 0xFFFFFFFF81000000
AT = 0xFFFFFFFF82400000
KNOWN = (
    "_text", "_stext", "_etext", "_end", "init_task", "bpf_fentry_test1", "__x64_sys_bpf", "bpf_prog_load",
    "ftrace_init", "__start_BTF", "__stop_BTF", "__per_cpu_start", "text_poke_early",
    "arch_prepare_bpf_trampoline", "__fentry__",
)  # fmt: skip


def _symbols(count: int, percpu: bool = True) -> list[tuple[str, int, str]]:
    symbols = [("__per_cpu_start", 0, "D"), ("current_task", 0x1FB80, "D")] if percpu else []
    symbols += [(f"bpf_trampoline_{number:04}", TEXT + 64 * number, "t") for number in range(count)]
    return [*symbols, ("n" * 200, TEXT + 64 * count, "T"), ("_end", TEXT + 64 * count + 64, "B")]


LAYOUTS = [
    ("offsets first", "absolute per-CPU", 8, True),
    ("names first", "absolute per-CPU", 8, True),
    ("names first", "base-relative", 8, False),
    ("names first", "entry-relative", 4, False),
    ("names first", "entry-relative", 8, False),
]


@pytest.mark.parametrize(("order", "form", "alignment", "percpu"), LAYOUTS)
@pytest.mark.parametrize("before", [b"", b"\1" * 13])
@pytest.mark.parametrize("count", [700, 701])
def test_every_layout_gives_the_symbols_that_were_written(order, form, alignment, percpu, count, before):
    symbols = _symbols(count, percpu)
    memory = kallsyms_tables(symbols, AT, order=order, form=form, alignment=alignment, before=before)
    found = Kallsyms.find(memory, AT)
    assert [(one.name, one.address, one.type) for one in found] == symbols
    assert (found.layout.form, found.layout.count) == (form, len(symbols))
    assert found.layout.offsets_first is (order == "offsets first")


@pytest.mark.parametrize(("order", "form", "alignment", "percpu"), LAYOUTS)
def test_a_kernel_that_was_moved_has_addresses_moved_alike(order, form, alignment, percpu):
    shift = 0x1D200000
    moved = [(name, at if at < 1 << 31 else at + shift, letter) for name, at, letter in _symbols(600, percpu)]
    memory = kallsyms_tables(moved, AT + shift, order=order, form=form, alignment=alignment, base=TEXT + shift)
    assert Kallsyms.find(memory, AT + shift)["bpf_trampoline_0007"] == TEXT + shift + 7 * 64


def test_digits_and_counts_elsewhere_are_not_taken_for_the_tables():
    decoy = b"".join(b"%c\0" % c for c in range(1, 256)) + struct.pack("<I", 300) + b"\5tabcd" * 200
    memory = kallsyms_tables(_symbols(600), AT, before=decoy)
    assert len(Kallsyms.find(memory, AT)) == 604


def test_damaged_markers_are_no_tables():
    memory = bytearray(kallsyms_tables(_symbols(700), AT))
    layout = Kallsyms.find(bytes(memory), AT).layout
    memory[layout.markers - AT + 4] ^= 1
    with pytest.raises(NoKallsyms, match="markers"):
        Kallsyms.find(bytes(memory), AT)


def test_memory_without_tables_and_with_a_part_of_them():
    with pytest.raises(NoKallsyms, match="token table"):
        Kallsyms.find(bytes(1 << 16), AT)
    memory = kallsyms_tables(_symbols(700), AT)
    layout = Kallsyms.find(memory, AT).layout
    with pytest.raises(NoKallsyms, match="offsets"):
        Kallsyms.find(memory[: layout.offsets - AT + 40], AT)


def test_questions_by_name_and_by_address():
    padding = [(f"variable_{number}", TEXT + 0x1000 + number, "d") for number in range(512)]
    symbols = [("twice", TEXT, "t"), ("alias", TEXT + 32, "T"), ("same", TEXT + 32, "T"), ("twice", TEXT + 64, "t")]
    symbols += [*padding, ("_end", TEXT + 0x2000, "B")]
    found = Kallsyms.find(kallsyms_tables(symbols, AT), AT)
    assert found["twice"] == TEXT
    assert found.every("twice") == (TEXT, TEXT + 64)
    assert found.every("same") == (TEXT + 32,)
    assert found.every("absent") == ()
    assert found.at(TEXT + 40) == ("alias", 8)
    assert found.describe(TEXT + 66) == "twice+0x2"
    assert found.describe(TEXT + 0x2000) == f"{TEXT + 0x2000:#x}"
    assert found.get("absent") is None
    with pytest.raises(NoSymbol, match="'absent'"):
        found["absent"]


@pytest.mark.parametrize("name", ["6.1", "6.12", "7", "6.12-full", "6.12-rt", "7-full", "7-rt"])
def test_a_real_kernel_has_the_known_symbols(name, kernel_folder: Callable[[str], Path]):
    image = KernelImage.open(kernel_folder(name))
    symbols = image.kallsyms
    assert len(symbols) > 50_000
    assert [known for known in KNOWN if known not in symbols] == []
    assert symbols["_text"] == image.start
    # A reading that is off by one entry would give other addresses.
    assert symbols["_text"] % 4096 == symbols["init_task"] % 64 == 0
    starts = {image.read(symbols[f"__x64_sys_{call}"], 1) for call in ("bpf", "close", "read")}
    assert starts in ({b"\xf3"}, {b"\xe8"})  # endbr64, or without IBT the call of __fentry__
