import pytest
from kernel_releases import RELEASES

from asm import DisplacementError
from emu.kernel.errors import KernelError
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.uapi import AttachType
from trampoline.image.generator import ProgCall, TrampFlag, TrampFrame, TrampLinks, arch_prepare_bpf_trampoline
from trampoline.tramp_links import TrampProgType, enter_exit, flags_of, kind_of, links_of

FLAGS = {"fentry": TrampFlag.RESTORE_REGS, "fexit": TrampFlag.CALL_ORIG | TrampFlag.SKIP_FRAME}
TEXT, IMAGE, IM = 0xFFFFFFFF81000000, 0xFFFFFFFFC0000000, 0xFFFF888000001000
SYMBOLS = {name: TEXT + 0x1000 * i for i, name in enumerate(
    ("__bpf_prog_enter_recur", "__bpf_prog_exit_recur", "__bpf_tramp_enter", "__bpf_tramp_exit"))}  # fmt: skip


def prog(number=0, **options):
    return ProgCall(f"prog{number}", 0xFFFFC90000000000 + 0x1000 * number, IMAGE + 0x800 + 0x40 * number, **options)


def generate(name, model, flags, links, *, boot=Boot(), **where):  # noqa: B008
    at = {"func_addr": TEXT + 0x100000, "address": IMAGE, "im": IM, "symbols": SYMBOLS} | where
    return arch_prepare_bpf_trampoline(RELEASES[name].trampoline, boot, model, flags, links, **at)


@pytest.mark.parametrize(
    ("args", "kind", "func_ip", "regs", "nregs", "ip", "rbx", "run_ctx", "size"),
    [
        (1, "fentry", False, 8, 16, 16, 24, 40, 40),
        (1, "fexit", False, 16, 24, 24, 32, 48, 48),
        (2, "fentry", False, 16, 24, 24, 32, 48, 48),
        (2, "fexit", False, 24, 32, 32, 40, 56, 56),
        (2, "fexit", True, 24, 32, 40, 48, 64, 64),
        (6, "fexit", False, 56, 64, 64, 72, 88, 88),
        (6, "fexit", True, 56, 64, 72, 80, 96, 96),
        (7, "fentry", False, 56, 64, 64, 72, 88, 88),
        (7, "fexit", False, 64, 72, 72, 80, 96, 104),
        (7, "fexit", True, 64, 72, 80, 88, 104, 120),
        (11, "fexit", False, 96, 104, 104, 112, 128, 168),
        (12, "fexit", True, 104, 112, 120, 128, 144, 200),
    ],
)
def test_frames_of_6_12(args, kind, func_ip, regs, nregs, ip, rbx, run_ctx, size):
    flags = FLAGS[kind] | (TrampFlag.IP_ARG if func_ip else TrampFlag(0))
    frame = TrampFrame.of(RELEASES["6.12"].trampoline, FuncModel.of_slots("f", args), flags)
    assert frame == TrampFrame(regs, nregs, ip, ip, rbx, run_ctx, size)


@pytest.mark.parametrize("args", range(7, 13))
@pytest.mark.parametrize("name", ["6.12", "7.2"])
def test_the_stack_is_aligned_where_the_original_is_called(name, args):
    flags = flags_of(RELEASES[name].trampoline, calls_original=True, uses_func_ip=False)
    frame = TrampFrame.of(RELEASES[name].trampoline, FuncModel.of_slots("f", args), flags)
    # Below the frame: rbp, the return address into the function (call sites only), the caller's.
    pushed = 24 if flags & TrampFlag.SKIP_FRAME else 16
    assert (frame.size + pushed) % 16 == 0


def test_small_and_large_displacements():
    model = FuncModel.of_slots("f", 12)
    flags = FLAGS["fexit"] | TrampFlag.IP_ARG
    texts = [line.text for line in generate("6.12", model, flags, TrampLinks(fexit=(prog(),))).image.lines]
    code = generate("6.12", model, flags, TrampLinks(fexit=(prog(),))).image.code
    assert any("0x90" in text for text in texts)  # run_ctx at rbp - 0x90 needs a disp32
    assert bytes.fromhex("4881ecc8000000") in code  # and so does sub rsp, 200


@pytest.mark.parametrize("name", RELEASES)
def test_the_site_is_reached_by_jmp_only_where_the_original_is_called(name):
    jmp = name == "7.2"
    for links, calls in ((TrampLinks(fentry=(prog(),)), False), (TrampLinks(fexit=(prog(),)), True)):
        flags = flags_of(RELEASES[name].trampoline, calls_original=links.call_original, uses_func_ip=False)
        code = generate(name, FuncModel.of_slots("f", 1), flags, links).image.code
        assert (bytes.fromhex("4883c408") in code) == (calls and not jmp)


def test_orig_stack_calls_the_address_in_the_frame():
    links = TrampLinks(fexit=(prog(),))
    flags = flags_of(RELEASES["7.2"].trampoline, calls_original=True, uses_func_ip=False, kept=TrampFlag.SHARE_IPMODIFY)
    assert flags & TrampFlag.ORIG_STACK
    assert flags & TrampFlag.SKIP_FRAME
    code = generate("7.2", FuncModel.of_slots("f", 1), flags, links).image.code
    assert bytes.fromhex("488b5d08ffd3") in code


def test_a_return_thunk_and_call_depth_accounting():
    links = TrampLinks(fexit=(prog(),))
    plain = generate("6.12", FuncModel.of_slots("f", 1), FLAGS["fexit"], links)
    hardened = generate("6.12", FuncModel.of_slots("f", 1), FLAGS["fexit"], links, boot=Boot(TEXT + 0x200000, 0x35010))
    calls = sum(line.text.startswith("call") for line in plain.image.lines)
    assert sum(line.text.startswith("sar") for line in hardened.image.lines) == calls + 1
    assert hardened.image.lines[-1].text.startswith("jmp")
    assert plain.image.code.endswith(b"\xc3\xcc")


def test_every_line_has_a_phase_and_phases_come_in_order():
    links = TrampLinks((prog(0),), (prog(1),), (prog(2),))
    made = generate("6.12", FuncModel.of_slots("f", 2), FLAGS["fexit"], links)
    phases = [str(line.phase) for line in made.image.lines]
    assert set(phases) == {"entry", "save", "enter", "program", "exit", "origin", "restore", "leave"}
    assert phases[0] == "entry"
    assert phases[-1] == "leave"


@pytest.mark.parametrize(("name", "args", "code"), [("6.1", 7, 524), ("6.12", 13, 22)])
def test_too_many_arguments(name, args, code):
    with pytest.raises(KernelError) as caught:
        generate(name, FuncModel.of_slots("f", args), FLAGS["fentry"], TrampLinks((prog(),)))
    assert caught.value.errno == code


def test_more_than_a_page_is_too_big():
    many = TrampLinks(tuple(prog(number) for number in range(80)))
    with pytest.raises(KernelError) as caught:
        generate("6.12", FuncModel.of_slots("f", 1), FLAGS["fentry"], many)
    assert caught.value.errno == 7


def test_a_callee_beyond_2_gib_is_out_of_range():
    with pytest.raises(DisplacementError) as caught:
        generate("6.12", FuncModel.of_slots("f", 1), FLAGS["fentry"], TrampLinks((prog(),)), address=0xFFFFC90000000000)
    assert caught.value.errno == 34


def test_no_stray_store_without_stack_arguments():
    # 492e797fdab2: the offset of the garbage-cleaning store was not initialised.
    for args in range(7):
        lines = generate("6.12", FuncModel.of_slots("f", args), FLAGS["fexit"], TrampLinks(fexit=(prog(),))).image.lines
        assert not any("dword ptr" in line.text and line.text.startswith("mov") for line in lines)


def test_programs_run_newest_first_within_a_kind():
    attached = [
        (TrampProgType.FENTRY, prog(0)),
        (TrampProgType.FEXIT, prog(1)),
        (TrampProgType.FENTRY, prog(2)),
        (TrampProgType.FSESSION, prog(3)),
    ]
    links = links_of(attached)
    assert [call.name for call in links.fentry] == ["prog3", "prog2", "prog0"]
    assert [call.name for call in links.fexit] == ["prog3", "prog1"]


@pytest.mark.parametrize(
    ("attach", "sleepable", "enter"),
    [
        (AttachType.TRACE_FENTRY, False, "__bpf_prog_enter_recur"),
        (AttachType.TRACE_FEXIT_MULTI, True, "__bpf_prog_enter_sleepable_recur"),
        (AttachType.LSM_MAC, False, "__bpf_prog_enter"),
        (AttachType.LSM_MAC, True, "__bpf_prog_enter_sleepable"),
        (AttachType.LSM_CGROUP, False, "__bpf_prog_enter_lsm_cgroup"),
    ],
)
def test_enter_and_exit_by_program(attach, sleepable, enter):
    assert enter_exit(attach, sleepable=sleepable) == (enter, enter.replace("enter", "exit"))


def test_an_lsm_program_on_a_void_hook_runs_after_it():
    assert kind_of(AttachType.LSM_MAC, FuncModel("hook", (), ret_size=0)) is TrampProgType.FEXIT
    assert kind_of(AttachType.LSM_MAC, FuncModel("hook")) is TrampProgType.MODIFY_RETURN
