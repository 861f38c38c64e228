"""The call stack survives every way in which guest code calls and returns."""

from textwrap import dedent

import pytest

from asm.encodings import call_rel32, jmp_rel32
from emu.errors import GuestFault
from emu.events import PokePhase, TextPatched
from emu.machine.vcpu import Vcpu
from emu.recording import NodeKind, record
from recording_text import spans, tree


def block(text):
    return dedent(text).strip()


def recorded(traced, name, *args):
    with record(traced.kernel) as recording:
        call = traced.kernel.call(name, *args)
    assert recording.by_address == call.counts.by_address
    assert recording.counts == call.counts
    plain = traced.kernel.call(name, *args)
    assert recording.by_address == plain.counts.by_address
    assert recording.instructions == sum(node.own for node in recording.root.walk())
    return recording


def test_calls_and_returns(traced):
    traced.place(inner="ret", outer="push rbx\ncall inner\ncall inner\npop rbx\nret")
    recording = recorded(traced, "outer")
    assert tree(recording) == block("""
        outer 1x 5
          inner 1x 1
          inner 1x 1
    """)
    assert spans(recording) == block("""
        outer 7
          inner 1
          inner 1
    """)
    outer, first, second = list(recording.root.walk())[1:]
    assert (outer.site, outer.kind, outer.total) == (0, NodeKind.FUNCTION, 7)
    assert second.site - first.site == 5


def test_a_jump_is_a_call_in_the_callers_place(traced):
    traced.place(body="mov eax, 1\nret", stub="nop1\njmp body", outer="call stub\nret")
    assert spans(recorded(traced, "outer")) == block("""
        outer 6
          stub 4
            body 2
    """)


def test_a_jump_back_ends_it(traced):
    traced.place(away="xor eax, eax\njmp rdx", outer="lea rdx, [rip + back]\njmp away\nback: nop1\nret")
    assert spans(recorded(traced, "outer")) == block("""
        outer 6
          away 2
    """)


def test_a_return_address_that_is_dropped(traced):
    # As a trampoline at a call site, which calls the function behind its site and returns to its caller.
    traced.place(
        tramp="push rbx\nmov rax, qword ptr [rsp + 8]\ncall rax\npop rbx\nadd rsp, 8\nret",
        f="call tramp\nmov eax, 7\nret",
        caller="call f\nret",
    )
    recording = recorded(traced, "caller")
    assert spans(recording) == block("""
        caller 11
          f 9
            tramp 8
              f 2
    """)
    assert recording.unbalanced_returns == 2


def test_going_on_after_the_return_address_is_dropped(traced):
    traced.place(
        leaf="ret",
        tramp="add rsp, 8\ntest rsp, rsp\nje .Lno\ncall leaf\n.Lno: ret",
        f="call tramp\nud2",
        caller="call f\nret",
    )
    assert spans(recorded(traced, "caller")) == block("""
        caller 9
          f 7
            tramp 6
              leaf 1
    """)


def test_a_return_to_what_was_pushed_is_a_jump(traced):
    traced.place(body="mov eax, 1\nret", outer="mov rax, body\npush rax\nret", caller="call outer\nret")
    assert spans(recorded(traced, "caller")) == block("""
        caller 7
          outer 5
            body 2
    """)


def test_a_call_that_only_wants_its_own_address(traced):
    traced.place(outer="call .Lhere\n.Lhere: pop rax\nadd rax, 7\njmp rax\nnop1\nret", caller="call outer\nret")
    assert spans(recorded(traced, "caller")) == block("""
        caller 8
          outer 6
            outer 5
    """)


def test_recursion(traced):
    traced.place(f="test edi, edi\nje .Lend\ndec edi\ncall f\n.Lend: ret")
    assert spans(recorded(traced, "f", 2)) == block("""
        f 13
          f 8
            f 3
    """)


def test_a_loop_makes_no_frames_and_a_rep_counts_once(traced):
    traced.place(f="mov ecx, 5\n.Lagain: dec ecx\njne .Lagain\nmov ecx, 3\nxor eax, eax\nmov rdi, rsp\nsub rdi, 64\n"
                   "rep stosb\nret")  # fmt: skip
    recording = recorded(traced, "f")
    assert tree(recording) == "f 1x 17"


def test_host_calls_and_what_they_call(traced):
    def nested(vcpu: Vcpu) -> int:
        return vcpu.call(traced.kernel.kallsyms.address("leaf")).value + 1

    traced.place(leaf="mov eax, 4\nret")
    traced.host("answer", nested)
    traced.place(outer="push rbx\ncall answer\npop rbx\nret")
    recording = recorded(traced, "outer")
    assert spans(recording) == block("""
        outer 7
          answer 3
            leaf 2
    """)


def test_int3_emulates_a_call(boot):
    traced = boot(vcpus=2)
    kernel = traced.kernel
    traced.place(tramp="mov edi, 100\nret")
    f = kernel.function("bpf_fentry_test1")
    for encode, values in ((call_rel32, 101), (jmp_rel32, 0)):
        new = encode(f.site, kernel.kallsyms.address("tramp"))
        patching = kernel.process.start(lambda new=new: kernel.text_poke.text_poke_bp(f.site, new))
        while not any(isinstance(event, TextPatched) and event.phase is PokePhase.INT3 for event in kernel.events):
            patching.step()
        vcpu = traced.machine.vcpus[1]
        vcpu.see_new(f.site)
        with record(kernel) as recording:
            call = vcpu.call(f.address, 1)
        assert recording.by_address == call.counts.by_address
        # int3, then mov and ret of tramp; a call comes back to lea and ret.
        assert spans(recording, 1) == ("bpf_fentry_test1 5\n  tramp 2" if values else "bpf_fentry_test1 3\n  tramp 2")
        assert [mark.cpu for mark in recording.marks] == [1]
        patching.finish()
        kernel.text_poke.text_poke_bp(f.site, f.image.code[f.site - f.address :][:5])
        kernel.events.clear()


def test_a_fault_ends_every_frame(traced):
    traced.place(bad="xor eax, eax\nmov rax, qword ptr [rax]\nret", outer="call bad\nret")
    with record(traced.kernel) as recording:
        with pytest.raises(GuestFault):
            traced.kernel.call("outer")
        traced.kernel.call("bpf_fentry_test1", 1)
    assert spans(recording) == block("""
        outer 2
          bad 1
        bpf_fentry_test1 3
    """)


def test_instruction_by_instruction(traced):
    traced.place(inner="nop1\nret", outer="push rbx\ncall inner\npop rbx\nret")
    whole = recorded(traced, "outer")
    task = traced.kernel.task("stepped", "outer")
    vcpu = traced.machine.vcpus[0]
    with record(traced.kernel) as recording:
        vcpu.switch_to(task)
        while vcpu.advance(1) is None:
            pass
    assert recording.by_address == whole.by_address
    assert spans(recording) == block("""
        stepped 6
          outer 6
            inner 2
    """)


def test_a_task_that_sleeps_goes_on_on_another_cpu(boot):
    traced = boot(vcpus=2)
    traced.place(inner="push rbx\ncall schedule\npop rbx\nret", outer="push rbx\ncall inner\npop rbx\nret")
    first, second = traced.machine.vcpus
    task = traced.kernel.task("kthread", "outer")
    with record(traced.kernel) as recording:
        first.run(task)
        first.call(traced.kernel.kallsyms.address("bpf_fentry_test1"), 1)
        task.wake()
        second.run(task)
    assert spans(recording, 0) == block("""
        kthread 4
          outer 4
            inner 2
              schedule 0
        bpf_fentry_test1 3
    """)
    assert spans(recording, 1) == block("""
        kthread 5
          outer 5
            inner 3
              schedule 1
    """)
    assert tree(recording) == block("""
        kthread 1x 0
          outer 1x 4
            inner 1x 4
              schedule 1x 1
        bpf_fentry_test1 1x 3
    """)
    assert recording.executed == [7, 5]


def test_vcpus_take_turns_on_one_line_of_time(boot):
    traced = boot(vcpus=2)
    traced.place(f="nop1\nnop1\nnop1\nret")
    tasks = [traced.kernel.task(name, "f") for name in ("one", "other")]
    with record(traced.kernel) as recording:
        for vcpu, task in zip(traced.machine.vcpus, tasks, strict=True):
            vcpu.switch_to(task)
        ended = [False, False]
        while not all(ended):
            for vcpu in traced.machine.vcpus:
                if not ended[vcpu.index]:
                    ended[vcpu.index] = vcpu.advance(1) is not None
    assert recording.executed == [4, 4]
    assert {name: (change.position, change.own) for change in recording.changes
            if not change.enters and (name := change.node.name) != "f"} == {"one": (7, 4), "other": (8, 4)}  # fmt: skip
