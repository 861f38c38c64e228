"""What a fault tells."""

import pytest

from emu.errors import GuestFault

HOLE = 0xFFFFC900DEAD0000


def fault_of(bench, text, *args):
    function = bench.place(text)
    with pytest.raises(GuestFault) as caught:
        bench.cpu.call(function, *args)
    return caught.value, function


@pytest.mark.parametrize(
    ("text", "access"),
    [
        ("mov rax, qword ptr [rdi]", "read"),
        ("mov qword ptr [rdi], rax", "write"),
        ("add qword ptr [rdi], rax", "read"),  # the read comes first
        ("cmp qword ptr [rdi], rax", "read"),
        ("mov rsp, rdi\npush rax", "write"),
        ("mov rsp, rdi\npop rax", "read"),
        ("push qword ptr [rdi]", "read"),
        ("call qword ptr [rdi]", "read"),
        ("jmp rdi", "fetch"),
        ("movzx eax, byte ptr [rdi]", "read"),
    ],
)
def test_a_page_fault_tells_address_and_access(bench, text, access):
    fault, function = fault_of(bench, f"mov ebx, 5\n{text}\nret", HOLE)
    assert (fault.kind, fault.access) == ("page fault", access)
    assert fault.address in (HOLE, HOLE - 8)
    assert fault.registers["rbx"] == 5
    assert fault.registers["rip"] == fault.rip
    assert fault.rip == HOLE if access == "fetch" else function < fault.rip < function + 16


@pytest.mark.parametrize(
    ("text", "kind", "offset"),
    [
        ("mov rax, 0x1234567812345678\nmov rax, qword ptr [rax]", "general protection", 10),
        ("ud2", "invalid opcode", 0),
        ("xor ecx, ecx\ndiv ecx", "divide error", 2),
        ("hlt", "hlt", 0),
        ("int3", "unhandled int3", 0),
        ("int 0x80", "unhandled interrupt 0x80", 2),
    ],
)
def test_exceptions_by_kind(bench, text, kind, offset):
    fault, function = fault_of(bench, f"{text}\nret")
    assert (fault.kind, fault.rip - function) == (kind, offset)
    assert fault.address is None


def test_the_report_names_the_line_the_symbol_and_the_registers(bench):
    image = bench.image("entry:\nmov ebx, 0x77\nmov qword ptr [rdi], rbx ; store it\nret")
    bench.machine.symbolize = lambda address: "victim" if image.address <= address < image.end else None
    with pytest.raises(GuestFault) as caught:
        bench.cpu.call(image.address, bench.data + 0x10000)
    report = str(caught.value)
    first, *rows = report.splitlines()
    assert first.startswith(f"page fault writing {bench.data + 0x10000:#x} at rip {image.address + 5:#x}")
    assert "(victim+0x5: mov qword ptr [rdi], rbx  ; store it)" in first
    assert first.endswith("on vcpu 0")
    assert "     rbx 0000000000000077" in report
    assert len(rows) == 5


def test_a_fault_names_the_region_it_hit(bench):
    fault, _ = fault_of(bench, "jmp rdi", bench.data)
    assert fault.note == "data"


def test_two_page_faults_in_a_row_are_two_page_faults(bench):
    """The engine would take the second for a double fault, and the third for a triple one."""
    load = bench.place("mov rax, qword ptr [rdi]\nret")
    for _ in range(4):
        with pytest.raises(GuestFault, match="page fault reading"):
            bench.cpu.call(load, HOLE)
    assert bench.cpu.call(load, bench.data).value == 0


def test_registers_and_gs_survive_a_fault(bench):
    load = bench.place("mov r12, rsi\nmov rax, qword ptr [rdi]\nret")
    with pytest.raises(GuestFault):
        bench.cpu.call(load, HOLE, 0xABC)
    assert bench.cpu.regs.r12 == 0xABC
    assert bench.cpu.gs_base == bench.machine.layout.percpu


def test_the_stack_has_a_guard_page(bench):
    """Infinite recursion ends in a fault just below the stack."""
    fault, _ = fault_of(bench, "again: call again")
    bottom = bench.cpu.idle.stack_top - (16 << 10)
    assert (fault.kind, fault.access, fault.address) == ("page fault", "write", bottom - 8)


def test_a_function_that_loses_stack_is_caught(bench):
    fault, _ = fault_of(bench, "pop rax\nsub rsp, 8\npush rax\nret")
    assert fault.kind == "stack imbalance"


def test_freed_memory_is_named_when_executed(bench):
    victim = bench.place("mov eax, 1\nret\n")
    bench.machine.poison(victim, 16, "bpf_trampoline_7")
    for entry in (victim, victim + 3):
        with pytest.raises(GuestFault, match="bpf_trampoline_7 was freed") as caught:
            bench.cpu.call(entry)
        assert (caught.value.kind, caught.value.rip) == ("execution of freed memory", entry)
    bench.machine.load(victim, bench.constant(victim, 3))
    assert bench.cpu.call(victim).value == 3


def test_freed_memory_is_named_after_it_was_unmapped(bench):
    page = bench.text + 4096
    bench.machine.poison(page, 4096, "module foo")
    bench.machine.unmap(page, 4096)
    with pytest.raises(GuestFault, match="module foo was freed"):
        bench.cpu.call(page)


def test_freed_memory_is_no_business_of_the_int3_hooks(bench):
    bench.machine.on_int3.append(lambda vcpu: True)
    victim = bench.place("ret")
    bench.machine.poison(victim, 8, "gone")
    with pytest.raises(GuestFault, match="gone was freed"):
        bench.cpu.call(victim)


def test_int3_hooks_are_asked_in_turn_and_may_move_rip(bench):
    target = bench.place("mov eax, 5\nret")
    site = bench.place("int3\nnop\nret")
    asked = []

    def decline(vcpu):
        asked.append(("decline", vcpu.regs.rip - site))
        return False

    def emulate_jmp(vcpu):
        asked.append(("emulate", vcpu.regs.rip - site))
        vcpu.regs.rip = target
        return True

    bench.machine.on_int3 += [decline, emulate_jmp, decline]
    assert bench.cpu.call(site).value == 5
    assert asked == [("decline", 1), ("emulate", 1)]


@pytest.mark.parametrize("address", [HOLE, 0x1234567812345678])
def test_a_fault_can_be_fixed(bench, address):
    """As an exception table does it; what follows runs, again and again, and is counted once."""
    loop = "mov rax, qword ptr [rdi]\nadd rbx, rax\nsub ecx, 1\njne again"
    function = bench.place(f"mov ecx, 3\nagain:\n{loop}\nmov rax, rbx\nret")
    seen = []

    def fix(vcpu, rip):
        seen.append(rip)
        vcpu.regs.rax = 7
        vcpu.regs.rip = rip + 3
        return rip == function + 5

    bench.machine.on_fault.append(fix)
    bench.cpu.regs.rbx = 0
    try:
        call = bench.cpu.call(function, address)
        assert (call.value, seen) == (21, [function + 5] * 3)
        assert call.counts is None or call.counts.instructions == 1 + 3 * 3 + 2
        with pytest.raises(GuestFault):
            bench.cpu.call(bench.place("nop\nmov rax, qword ptr [rdi]\nret"), address)
    finally:
        bench.machine.on_fault.remove(fix)
