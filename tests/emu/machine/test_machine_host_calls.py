"""Guest code calling Python, and Python calling guest code from there."""

import pytest

from emu.errors import GuestFault, GuestTimeout, MachineError


def test_arguments_and_result(bench):
    seen = []

    def record(vcpu):
        seen.append(vcpu.args(8))
        return vcpu.regs.rdi + 1

    stub = bench.machine.host_call("record", record)
    caller = bench.place("push 8\npush 7\ncall stub\nadd rsp, 16\nret", stub=stub)
    assert bench.cpu.call(caller, 1, 2, 3, 4, 5, 6).value == 2
    assert seen == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_none_leaves_rax_alone(bench):
    stub = bench.machine.host_call("nothing", lambda vcpu: None)
    caller = bench.place("mov eax, 77\ncall stub\nret", stub=stub)
    assert bench.cpu.call(caller).value == 77


def test_negative_results_are_taken_modulo_2_64(bench):
    stub = bench.machine.host_call("minus one", lambda vcpu: -1)
    assert bench.cpu.call(bench.place("jmp stub", stub=stub)).value == (1 << 64) - 1


def test_many_arguments_go_on_the_stack(bench):
    ninth = bench.place("mov rax, qword ptr [rsp + 24]\nret")
    assert bench.cpu.call(ninth, *range(1, 10)).value == 9
    assert bench.cpu.call(ninth, stack_args=(7, 8, 9)).value == 9
    assert bench.cpu.call(ninth, 1, 2, stack_args=(7, 8, -9)).value == (1 << 64) - 9


@pytest.mark.parametrize("count", range(10))
def test_the_stack_is_aligned_at_entry(bench, count):
    aligned = bench.place("lea rax, [rsp + 8]\nand eax, 15\nret")
    assert bench.cpu.call(aligned, *range(count)).value == 0


def test_calls_nest_and_leave_registers_alone(bench):
    """A host call that calls guest code, which calls a host call, five levels deep."""

    def descend(vcpu):
        depth = vcpu.regs.rdi
        before = vcpu.regs.as_dict()
        result = vcpu.call(outer, depth - 1).value if depth else 0
        assert vcpu.regs.as_dict() == before
        return result

    stub = bench.machine.host_call("descend", descend)
    outer = bench.place("push rbx\nmov rbx, rdi\ncall stub\nadd rax, rbx\npop rbx\nret", stub=stub)
    assert bench.cpu.call(outer, 5).value == 15


def test_registers_are_as_the_callee_left_them(bench):
    bench.cpu.regs.rbx = 0x1234
    function = bench.place("mov r11, 9\nret")
    bench.cpu.call(function)
    assert (bench.cpu.regs.rbx, bench.cpu.regs.r11) == (0x1234, 9)


def test_what_a_host_call_raises_comes_out_with_the_place(bench):
    class Unhappy(Exception):
        pass

    def fail(vcpu):
        raise Unhappy("no")

    image = bench.image("nop\ncall stub\nret", stub=bench.machine.host_call("fail", fail))
    with pytest.raises(Unhappy) as caught:
        bench.cpu.call(image.address)
    (note,) = caught.value.__notes__
    assert note.startswith("in the host call fail on vcpu 0, called from image+0x6: ret")
    assert not bench.cpu.is_running
    assert bench.cpu.call(bench.place("mov eax, 3\nret")).value == 3


def test_a_fault_in_a_nested_call_comes_out_of_the_outer_one(bench):
    bad = bench.place("ud2")
    outer = bench.place("call stub\nret", stub=bench.machine.host_call("bad", lambda vcpu: vcpu.call(bad).value))
    with pytest.raises(GuestFault, match="invalid opcode"):
        bench.cpu.call(outer)


def test_a_host_call_may_handle_a_nested_fault(bench):
    bad = bench.place("mov rax, qword ptr [rdi]\nret")

    def probe(vcpu):
        try:
            return vcpu.call(bad, 0x10).value
        except GuestFault:
            return 0xEFA

    outer = bench.place(
        "push rbx\nmov rbx, rdi\ncall stub\nadd rax, rbx\npop rbx\nret", stub=bench.machine.host_call("probe", probe)
    )
    assert bench.cpu.call(outer, 0x1000).value == 0x1EFA


def test_a_host_call_may_patch_the_code_that_it_returns_to(bench):
    site = bench.text + 0x1000

    def patch(vcpu):
        bench.machine.write_text(site + 6, b"\x09")
        vcpu.serialize()

    stub = bench.machine.host_call("patch", patch)
    bench.place("call stub\nmov eax, 1\nret", at=site, stub=stub)
    assert bench.cpu.call(site).value == 9


def test_a_removed_host_call_is_a_fault(bench):
    stub = bench.machine.host_call("short-lived", lambda vcpu: 1)
    caller = bench.place("call stub\nret", stub=stub)
    assert bench.cpu.call(caller).value == 1
    bench.machine.remove_host_call(stub)
    with pytest.raises(GuestFault, match="no such host call"):
        bench.cpu.call(caller)
    with pytest.raises(MachineError):
        bench.machine.remove_host_call(stub)
    assert bench.machine.host_call("next", lambda vcpu: 2) == stub
    assert bench.cpu.call(caller).value == 2


def test_stubs_run_out_with_an_error(bench):
    machine = bench.machine
    made = {machine.host_call(f"call {number}", lambda vcpu: None) for number in range(4095)}
    assert len(made) == 4095
    with pytest.raises(MachineError, match="no stub left"):
        machine.host_call("one more", lambda vcpu: None)


def test_max_instructions_is_exact(bench):
    function = bench.place("mov ecx, 10\nagain:\ndec ecx\njnz again\nret")
    needed = 1 + 20 + 1 + 1  # and the hlt behind the return
    assert bench.cpu.call(function, max_instructions=needed).value == bench.cpu.regs.rax
    with pytest.raises(GuestTimeout, match="still running after 22 instructions") as caught:
        bench.cpu.call(function, max_instructions=needed - 1)
    assert caught.value.registers["rcx"] == 0


def test_a_runaway_guest_is_stopped(bench):
    loop = bench.place("again: jmp again")
    with pytest.raises(GuestTimeout):
        bench.cpu.call(loop, max_instructions=10_000)
    bench.machine.max_ticks = 1
    with pytest.raises(GuestTimeout, match="host time"):
        bench.cpu.call(loop)
    assert bench.cpu.call(bench.place("mov eax, 4\nret")).value == 4


def test_a_nested_call_does_not_use_up_the_outer_limit(bench):
    busy = bench.place("mov ecx, 1000\nagain:\ndec ecx\njnz again\nret")
    stub = bench.machine.host_call("busy", lambda vcpu: vcpu.call(busy).value)
    outer = bench.place("call stub\nmov eax, 1\nret", stub=stub)
    assert bench.cpu.call(outer, max_instructions=6).value == 1
    with pytest.raises(GuestTimeout):
        bench.cpu.call(outer, max_instructions=5)


def test_a_limit_holds_in_a_nested_call_of_an_unlimited_one(bench):
    loop = bench.place("again: jmp again")

    def bounded(vcpu):
        with pytest.raises(GuestTimeout):
            vcpu.call(loop, max_instructions=100)
        return 6

    outer = bench.place("call stub\nret", stub=bench.machine.host_call("bounded", bounded))
    assert bench.cpu.call(outer).value == 6
