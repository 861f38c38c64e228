"""Frames of every design: names and values at each instruction of a call."""

from itertools import product

import pytest

from emu.machine.registers import SAVED
from trampoline.bpf.prog import Uses
from trampoline.tools.debugger import AtPhase, BpfDebugger, DebugStopReason

KEPT = {name: 0x1234_0000 + number for number, name in enumerate(("rbx", "rbp", "r12", "r13", "r14", "r15"))}
COOKIE = 0x77
CASES = [
    (design, flavour, kind)
    for design, (flavour, _), kind in product(
        ("per-function", "batched", "generic", "specialised", "tracing-multi-v2", "tracing-multi-v1"),
        (("6.12", ""), ("7.2", "")),
        ("fentry", "fexit", "fmod_ret"),
    )
    if not (kind == "fmod_ret" and design not in ("per-function", "specialised"))
]
FUNCTIONS = {"bpf_fentry_test1": 1, "bpf_fentry_test6": 6, "bpf_testmod_fentry_test7": 7, "bpf_modify_return_test": 2}


def stage(make_lab, design, flavour, kind, function, *, count=1):
    lab = make_lab(flavour, "lazy" if flavour == "7.2" else "voluntary", design=design, counting="off")
    if "testmod" in function:
        lab.load_testmod()
    several = kind != "fmod_ret" and design != "per-function"
    uses = Uses(func_ip=True, run_ctx=True, arg_cnt=True)
    for _ in range(count):
        prog = lab.prog(kind + ("_multi" if several else ""), "xor eax, eax\nret", uses=uses)
        if several:
            lab.attach_multi(prog, [function], cookies=[COOKIE])
        else:
            lab.attach(prog, function, cookie=COOKIE)
    return lab


def called(lab, function):
    debugger = BpfDebugger(lab)
    args = [0x100 + number for number in range(FUNCTIONS[function])]
    if function == "bpf_modify_return_test":
        args = [1, lab.kernel.module_data(8, 8)]
    debugger.call(function, *args)
    for name, value in KEPT.items():
        debugger.set_register(name, value)
    return debugger, args


def function_of(kind, design, flavour):
    if kind == "fmod_ret":
        return "bpf_modify_return_test"
    return "bpf_testmod_fentry_test7" if design in ("specialised", "per-function") and flavour == "7.2" else (
        "bpf_fentry_test6"
    )  # fmt: skip


@pytest.mark.parametrize(("design", "flavour", "kind"), CASES)
def test_slots_have_their_values_where_the_program_runs(make_lab, design, flavour, kind):
    function = function_of(kind, design, flavour)
    lab = stage(make_lab, design, flavour, kind, function)
    debugger, args = called(lab, function)
    assert debugger.run_to("program").reason is DebugStopReason.STEP
    assert debugger.program_at() == "prog1"
    # What the program gets in rdi is what we call arg1.
    context = debugger.registers()["rdi"]
    frames = [debugger.frame(level=level) for level in range(len(debugger.backtrace()))]
    by_name = {slot.name: slot for frame in frames for slot in frame.slots}
    assert by_name["arg1"].address == context
    for number, value in enumerate(args, 1):
        mask = 0xFFFF_FFFF_FFFF_FFFF
        assert by_name[f"arg{number}"].value & mask == value
        assert by_name[f"arg{number}"].address == context + 8 * (number - 1)
    assert by_name["nr_args"].value == (6 if design == "generic" else len(args))
    assert by_name["nr_args"].address == context - 8
    assert by_name["ip"].value == lab.kernel.kallsyms.address(function)
    assert by_name["ip"].words == function
    assert by_name["run_ctx.cookie"].value == COOKIE
    assert by_name["run_ctx.saved_run_ctx"].value == 0
    if kind != "fentry":
        returned = by_name["return value"]
        if kind == "fexit":
            debugger.goto(debugger.end)
            debugger.run()
            assert debugger.thread.value & 0xFFFFFFFF == returned.value & 0xFFFFFFFF
    for name, value in KEPT.items():
        assert by_name.get(f"saved {name}") is None or by_name[f"saved {name}"].value == value
    debugger.close()


@pytest.mark.parametrize(("design", "flavour", "kind"), CASES)
def test_every_instruction_has_its_callers(make_lab, design, flavour, kind):
    """At each instruction: the calls lead outside, with the registers and the stack that the caller had."""
    function = function_of(kind, design, flavour)
    lab = stage(make_lab, design, flavour, kind, function, count=2)
    debugger, _ = called(lab, function)
    first = debugger.registers()["rsp"]
    looked_at = set()
    while True:
        calls = debugger.activations()
        rip = debugger.rip
        outermost = calls[-1]
        assert outermost.return_slot == first, f"{debugger.symbol(rip)}: {debugger.code_line(rip).text}"
        assert len(calls) <= 6
        if rip not in looked_at:
            looked_at.add(rip)
            frame = debugger.frame()
            assert frame["return address"].name.startswith("return address →")
            if frame.base == "rbp":
                assert frame.slots[0].address - debugger.registers()["rbp"] == frame.slots[0].offset
        if debugger.step().reason is not DebugStopReason.STEP:
            break
    assert debugger.thread.is_done
    final = debugger.thread.task.registers
    assert {name: final[SAVED.index(name)] for name in KEPT} == KEPT
    debugger.close()


def test_phases_follow_each_other_as_the_listing_has_them(make_lab):
    lab = stage(make_lab, "per-function", "6.12", "fexit", "bpf_fentry_test1")
    debugger, _ = called(lab, "bpf_fentry_test1")
    phases = []
    while debugger.run_to("phase").reason is DebugStopReason.STEP:
        phases.append(debugger.phase())
    assert phases == ["entry", "save", "origin", "enter", "program", "exit", "origin", "restore", "leave"]
    debugger.add(AtPhase("origin"))
    positions = []
    while debugger.run_back().reason is DebugStopReason.BREAKPOINT:
        positions.append(debugger.position)
    forth = []
    while debugger.run().reason is DebugStopReason.BREAKPOINT:
        forth.append(debugger.position)
    assert len(positions) == 3  # the original's own instructions have no phase
    assert forth == positions[::-1]


@pytest.mark.parametrize("flavour", ["6.12", "7.2"])
def test_an_entry_is_found_where_thunks_are_made_late(make_lab, flavour):
    lab = stage(make_lab, "specialised", flavour, "fexit", "bpf_fentry_test1")
    debugger, _ = called(lab, "bpf_fentry_test1")
    first = debugger.position
    while debugger.phase() != "entry" and debugger.phase() != "save":
        debugger.step()
    wanted = debugger.position
    found = debugger.phase()
    debugger.goto(first)
    debugger.add(AtPhase(found))
    assert debugger.run().reason is DebugStopReason.BREAKPOINT
    assert debugger.position == wanted


def test_an_attach_can_be_gone_back_from_and_made_again(make_lab):
    lab = make_lab("6.12", vcpus=2)
    prog = lab.prog("fexit", "xor eax, eax\nret")
    debugger = BpfDebugger(lab)
    attach = debugger.operation("attach", lambda: lab.attach(prog, "bpf_fentry_test1"))
    assert debugger.run().reason is DebugStopReason.DONE
    attached = debugger.position
    site = lab.kernel.kallsyms.address("bpf_fentry_test1") + 4
    debugger.operation("detach", lambda: attach.result.detach())
    assert debugger.run().reason is DebugStopReason.DONE
    detached = debugger.position
    for _ in range(2):
        debugger.goto(attached)
        assert lab.kernel.machine.read(site, 1) == b"\xe8"
        debugger.goto(0)
        assert lab.kernel.machine.read(site, 1) == b"\x0f"
        debugger.goto(detached)
        assert lab.kernel.machine.read(site, 1) == b"\x0f"
    debugger.close()
    assert lab.call("bpf_fentry_test1", 41).value == 42
