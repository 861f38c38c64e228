import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asm.encodings import INT3, NOPS, call_rel32, jmp_rel32
from emu.errors import GuestFault, MachineError, NotMapped
from emu.events import CpuSerialized, PokePhase, TextPatched, TrapTaken
from emu.kernel.process_context import PointKind
from emu.kernel.text.functions import FunctionText
from emu.kernel.text.text_poke import VECTOR_SIZE, _taken


def site_of(kernel, name="bpf_fentry_test1"):
    return kernel.function(name).site


def stub(kernel, name, text):
    return kernel.add_functions(FunctionText(name, text, traceable=False))[0].address


def test_three_phases_each_followed_by_serialising_every_cpu(boot):
    kernel = boot(vcpus=2)
    site = site_of(kernel)
    new = call_rel32(site, stub(kernel, "stub", "ret"))
    kernel.text_poke.text_poke_bp(site, new)
    seen = [(e.phase, e.address, e.new) if isinstance(e, TextPatched) else e.vcpu for e in kernel.events]
    assert seen == [
        (PokePhase.INT3, site, INT3), 0, 1,
        (PokePhase.TAIL, site + 1, new[1:]), 0, 1,
        (PokePhase.FIRST_BYTE, site, new[:1]), 0, 1,
    ]  # fmt: skip
    assert kernel.machine.read(site, 5) == new


def test_a_lower_address_or_a_full_vector_flushes_the_batch(kernel):
    low, high = sorted((site_of(kernel), site_of(kernel, "bpf_fentry_test2")))
    target = stub(kernel, "stub", "ret")
    kernel.text_poke.batch_add(high, call_rel32(high, target))
    kernel.text_poke.batch_add(low, call_rel32(low, target))
    assert kernel.machine.read(high, 1) == b"\xe8"
    assert kernel.machine.read(low, 1) == NOPS[5][:1]
    kernel.text_poke.batch_finish()
    assert kernel.machine.read(low, 1) == b"\xe8"

    area = stub(kernel, "area", "nop1\n" * (VECTOR_SIZE + 2))
    before = kernel.text_poke.ipis
    for number in range(VECTOR_SIZE + 1):
        kernel.text_poke.batch_add(area + number, INT3)
    kernel.text_poke.batch_finish()
    # An int3 is its own first phase: one round for each of the two batches.
    assert kernel.text_poke.ipis - before == 2


def stop_after(kernel, operation, phase):
    """Run an operation until the given phase was written, before any CPU has serialised."""
    task = kernel.process.start(operation)
    done = 0
    while done < phase:
        before = len([e for e in kernel.events if isinstance(e, TextPatched)])
        task.step()
        done = sum(isinstance(e, TextPatched) for e in kernel.events)
        assert before <= done
    return task


@pytest.mark.parametrize("phase", [PokePhase.INT3, PokePhase.TAIL, PokePhase.FIRST_BYTE])
@pytest.mark.parametrize("sees_new", [False, True])
def test_a_cpu_that_has_not_serialised_executes_old_or_new(boot, phase, sees_new):
    kernel = boot(vcpus=2)
    site = site_of(kernel)
    target = stub(kernel, "stub", "mov edi, 100\nret")
    task = stop_after(kernel, lambda: kernel.text_poke.text_poke_bp(site, call_rel32(site, target)), phase)
    if sees_new:
        kernel.machine.vcpus[1].see_new(site if phase is not PokePhase.TAIL else site + 1)
    value = kernel.machine.vcpus[1].call(kernel.function("bpf_fentry_test1").address, 1).value
    traps = [e for e in kernel.events if isinstance(e, TrapTaken)]
    if phase is PokePhase.INT3 and not sees_new:
        assert (value, traps) == (2, [])
    elif phase is PokePhase.FIRST_BYTE and sees_new:
        assert (value, traps) == (101, [])
    else:
        # The int3 is there: the new call is emulated, whatever follows the int3.
        assert value == 101
        assert [e.rip for e in traps] == [target]
    task.finish()
    assert kernel.machine.vcpus[1].call(kernel.function("bpf_fentry_test1").address, 1).value == 101


def test_two_cpus_see_different_text(boot):
    kernel = boot(vcpus=3)
    site = site_of(kernel)
    target = stub(kernel, "stub", "mov edi, 100\nret")
    task = stop_after(kernel, lambda: kernel.text_poke.text_poke_bp(site, call_rel32(site, target)), 1)
    kernel.machine.vcpus[2].see_new(site)
    address = kernel.function("bpf_fentry_test1").address
    assert [vcpu.call(address, 1).value for vcpu in kernel.machine.vcpus] == [2, 2, 101]
    task.finish()
    assert not any(vcpu.pending() for vcpu in kernel.machine.vcpus)


@pytest.mark.parametrize(
    ("new", "flags", "taken"),
    [
        ("jmp", 0, True),
        ("nop", 0, False),
        ("je", 1 << 6, True),
        ("je", 0, False),
        ("jne", 0, True),
        ("ja", 1, False),
        ("jl", 1 << 7, True),
    ],
)
def test_int3_emulates_the_new_instruction(boot, new, flags, taken):
    kernel = boot()
    body = "nop6\nmov eax, 1\nret\n.Lthere:\nmov eax, 2\nret"
    set_flags = f"push {flags | 0x202:#x}\npopfq\n"
    address = stub(kernel, "victim", set_flags + body)
    image = kernel.functions["victim"].image
    site = next(address + line.offset for line in image.lines if line.size == 6)
    there = image.symbols[".Lthere"]
    codes = {"ja": 7, "je": 4, "jne": 5, "jl": 12}
    text = {
        "jmp": jmp_rel32(site, there),
        "nop": NOPS[5],
    }.get(new) or bytes([0x0F, 0x80 | codes[new]]) + (there - site - 6).to_bytes(4, "little")
    stop_after(kernel, lambda: kernel.text_poke.text_poke_bp(site, text), 1)
    kernel.machine.vcpus[0].see_new(site)
    if new == "nop":
        # Behind a nop5 stands the last byte of the old nop6.
        kernel.machine.load(site + 5, b"\x90")
    assert kernel.call(address).value == (2 if taken else 1)


def test_an_int3_of_nobody_is_a_fault(kernel):
    address = stub(kernel, "trap", "int3\nret")
    with pytest.raises(GuestFault, match="int3"):
        kernel.call(address)


@pytest.mark.parametrize("text", ["0f0b0f0b0f", "c300000000", "", "eb", "7400ff"])
def test_what_the_trap_cannot_emulate_is_refused_before_anything_is_written(kernel, text):
    site = site_of(kernel)
    before = kernel.machine.read(site, 5)
    with pytest.raises(ValueError, match="can't be emulated"):
        kernel.text_poke.text_poke_bp(site, bytes.fromhex(text))
    assert kernel.machine.read(site, 5) == before
    assert not [e for e in kernel.events if isinstance(e, TextPatched | CpuSerialized)]


@settings(max_examples=200)
@given(st.integers(0, 15), st.integers(0, 0xFFF))
def test_conditions_and_their_opposites(condition, rflags):
    assert _taken(condition, rflags) != _taken(condition ^ 1, rflags)


# Many sites ---------------------------------------------------------------------------------------------------------

VECTORS = 4
MANY = (VECTORS - 1) * VECTOR_SIZE + 100
"""More than a page of nop5s."""


def straight(kernel, operation):
    operation()


def driven(kernel, operation):
    task = kernel.process.start(operation)
    stops = 0
    while task.step():
        stops += 1
    assert stops > 3 * MANY


def watched(kernel, operation):
    seen = []
    kernel.process.watchers.append(seen.append)
    operation()
    kernel.process.watchers.clear()
    assert [point.kind for point in seen].count(PointKind.TEXT_WRITE) == 3 * MANY


def read(kernel, operation):
    """Every event is read when it happens: by then memory is as it says, and no CPU has adopted it."""
    told = []

    def look(event):
        told.append(event)
        if isinstance(event, TextPatched):
            assert kernel.machine.read(event.address, len(event.new)) == event.new
            assert all(vcpu.pending()[-1].address == event.address for vcpu in kernel.machine.vcpus)

    before = len(kernel.events)
    end = kernel.events.subscribe(look)
    operation()
    end()
    assert told == list(kernel.events)[before:]


def outcome(boot, run):
    """Everything that patching many sites, and patching them back, leaves behind."""
    kernel = boot(vcpus=2)
    target, area = stub(kernel, "target", "ret"), stub(kernel, "area", "nop5\n" * MANY)
    poke, machine = kernel.text_poke, kernel.machine
    sites = range(area, area + 5 * MANY, 5)
    outcomes = []
    for texts in ([call_rel32(site, target) for site in sites], [NOPS[5]] * MANY):
        machine.snapshot()

        def patch(texts=texts):
            with poke.text_mutex:
                for site, text in zip(sites, texts, strict=True):
                    poke.batch_add(site, text)
                poke.batch_finish()

        writes, ipis = poke.writes, poke.ipis
        run(kernel, patch)
        assert (poke.writes - writes, poke.ipis - ipis) == (3 * MANY, 3 * VECTORS)
        assert machine.read(area, 5 * MANY) == b"".join(texts)
        assert not any(vcpu.pending() for vcpu in machine.vcpus)
        machine.snapshot()
        outcomes.append((list(kernel.events), len(kernel.events), machine.pages_copied))
    return outcomes


@pytest.mark.parametrize("run", [driven, watched, read])
def test_a_whole_phase_at_once_is_as_point_by_point(boot, run):
    at_once = outcome(boot, straight)
    assert outcome(boot, run) == at_once
    events, count, _ = at_once[-1]
    assert len(events) == count
    assert sum(isinstance(event, TextPatched) for event in events) == 2 * 3 * MANY
    assert sum(isinstance(event, CpuSerialized) for event in events) == 2 * 3 * VECTORS * 2


def test_code_that_ran_before_is_translated_anew_after_a_large_batch(boot):
    kernel = boot(vcpus=2)
    target = stub(kernel, "target", "add rdi, 1\nret")
    area = stub(kernel, "area", "nop5\n" * MANY + "mov rax, rdi\nret")
    sites = range(area, area + 5 * MANY, 5)

    def values():
        return [vcpu.call(area, 0).value for vcpu in kernel.machine.vcpus]

    assert values() == [0, 0]
    for text_of, value in ((lambda site: call_rel32(site, target), MANY), (lambda site: NOPS[5], 0)):
        for site in sites:
            kernel.text_poke.batch_add(site, text_of(site))
        kernel.text_poke.batch_finish()
        assert values() == [value, value]


def test_what_is_no_text_is_refused_before_anything_is_written(kernel):
    site, data = site_of(kernel), kernel.slab.alloc(16, "data")
    before = kernel.machine.read(site, 5)
    for bad, error in ((data, MachineError), (0x1000, NotMapped)):
        for address in sorted((site, bad)):
            kernel.text_poke.batch_add(address, NOPS[5])
        with pytest.raises(error):
            kernel.text_poke.batch_finish()
        assert kernel.machine.read(site, 5) == before
    assert not [e for e in kernel.events if isinstance(e, TextPatched)]
    assert (kernel.text_poke.writes, kernel.text_poke.ipis) == (0, 0)
