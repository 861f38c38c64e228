"""The hook's bytes and their listing, the table, and what happens where executable memory is refused."""

import mmap
import platform

import pytest
from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from emu.counting import CountingError, machine_code
from emu.counting.native import NativeCounter


def test_listing_is_what_the_bytes_say():
    read = [
        (bytes(instruction.bytes).hex(" "), f"{instruction.mnemonic} {instruction.op_str}".strip())
        for instruction in Cs(CS_ARCH_X86, CS_MODE_64).disasm(machine_code.CODE, machine_code.CODE_START)
    ]
    assert read == list(machine_code.LISTING)


def test_listing_uses_the_layout():
    text = "\n".join(instruction for _, instruction in machine_code.LISTING)
    assert f"[rcx + rax + {machine_code.SLOTS:#x}]" in text
    assert f"[rcx + r8*8 + {machine_code.TOUCHED:#x}]" in text
    assert f"call qword ptr [rcx + {machine_code.STOP_ENGINE:#x}]" in text
    assert f"call qword ptr [rcx + {machine_code.UNKNOWN_BLOCK:#x}]" in text
    assert f"cmp r9, qword ptr [rcx + {machine_code.RETURN_FIRST:#x}]" in text
    assert f"cmp r9, qword ptr [rcx + {machine_code.RETURN_LAST:#x}]" in text
    entry = machine_code.CODE[machine_code.ENTRY - machine_code.CODE_START :]
    assert text.index("imul") > text.index("mov word ptr [rip + 2], 0xc669")
    assert entry[:2] == bytes.fromhex("69c6")
    assert f"imul eax, esi, {machine_code.HASH_FACTOR:#x}" in text


def test_slot_is_the_one_that_the_code_computes():
    for address in (0, 1, 0xFFFFFFFF81000000, 0xFFFFFFFFFFFFFFFF, 0x7FFF12345678):
        eax = ((address & 0xFFFFFFFF) * machine_code.HASH_FACTOR & 0xFFFFFFFF) >> 12 & 0xFFFFFFE0
        assert machine_code.slot_for(address) * machine_code.SLOT_SIZE == eax
        assert machine_code.slot_for(address) < machine_code.HASHED_SLOTS


@pytest.mark.parametrize("each", [False, True])
def test_colliding_blocks(engine, monkeypatch, each):
    # Real collisions: addresses whose low 32 bits agree up to what the hash keeps.
    it = engine()
    wanted = machine_code.slot_for(it.text)
    size = 64 * 0x1000
    colliding = [at for at in range(5, size - 8) if machine_code.slot_for(it.text + at) == wanted][:6]
    assert len(colliding) >= 3
    chain = [0, *colliding]
    end = size - 2
    for at, following in zip(chain, [*chain[1:], end], strict=True):
        it.write(it.text + at, b"\xe9" + (following - at - 5).to_bytes(4, "little", signed=True))
    counter = it.counter("each" if each else "native")
    for _ in range(3):
        it.run(counter, until=it.text + end)
    assert it.offsets(counter) == dict.fromkeys(chain, 3)
    it.patch(it.text + chain[1], b"\xe9" + (chain[3] - chain[1] - 5).to_bytes(4, "little", signed=True), counter)
    it.run(counter, until=it.text + end)
    assert it.offsets(counter) == {at: 3 if at == chain[2] else 4 for at in chain}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("each", [False, True])
def test_full_table_is_emptied_in_the_middle_of_a_run(engine, each, limit):
    source = (
        "mov ecx, 3; x: call f; mov edx, ecx; rep stosb; mov ecx, edx; dec ecx; jnz x; jmp out;"
        "f: call g; nop; ret; g: jmp h; h: ret; out: nop"
    )
    it = engine(source)
    counter = it.counter("each" if each else "native")
    assert isinstance(counter, NativeCounter)
    counter._full = limit
    it.run(counter)
    expected = it.counter("portable")
    it.run(expected)
    counter.remove()
    assert {address: count / 2 for address, count in counter.counts().items()} == expected.counts()
    assert counter.unbalanced_returns == 0


def test_read_looks_at_touched_slots_only(engine):
    it = engine("nop;" * 3000 + "ud2")
    counter = it.counter("each")
    it.run(counter)
    assert len(list(counter._touched())) == 3001
    counter.reset()
    it.run(counter, start=it.text + 2998)
    assert len(list(counter._touched())) == 3
    assert counter.instructions == 2


def refuse_executable(monkeypatch):
    real = mmap.mmap

    def refusing(fileno, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE, **more):
        if prot & mmap.PROT_EXEC:
            raise PermissionError(13, "Permission denied")
        return real(fileno, length, flags, prot, **more)

    monkeypatch.setattr(mmap, "mmap", refusing)


def test_auto_is_native_here(engine):
    assert engine("nop").counter("auto").method == "native"


def test_auto_falls_back_where_executable_memory_is_refused(engine, monkeypatch):
    refuse_executable(monkeypatch)
    it = engine("mov ecx, 4; x: loop x; nop")
    counter = it.counter("auto")
    assert counter.method == "portable"
    it.run(counter)
    assert counter.instructions == 6


@pytest.mark.parametrize("method", ["native", "each"])
def test_machine_code_asked_for_and_refused(engine, monkeypatch, method):
    refuse_executable(monkeypatch)
    it = engine("nop")
    with pytest.raises(CountingError, match=f"method {method}: .*Permission denied"):
        it.counter(method)
    it.run()


def test_other_processors_fall_back(engine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    it = engine("nop")
    assert it.counter("auto").method == "portable"
    with pytest.raises(CountingError, match="aarch64"):
        it.counter("native")
