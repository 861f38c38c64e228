"""The contract that every design keeps: design x flavour x kind x argument slots x programs, sleepable or not.

Programs see the right arguments, count, ip, cookie and return value, in the documented order; the original is called
exactly once or not at all; registers, stack and return address survive; after the last detach everything is as before.
"""

from errno import EINVAL, EOPNOTSUPP

import pytest
from kernel_releases import RELEASES

from emu.kernel.structs import PERCPU
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from trampoline.bpf.errors import ENOTSUPP, KernelError
from trampoline.designs import DESIGNS
from trampoline.lab import Lab

pytestmark = pytest.mark.slow

MASK = (1 << 64) - 1
SKIPS_ORIGINAL = 0x5EED
KINDS = ("fentry", "fexit", "fmod_ret", "fsession")
CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
WAYS = [(design, metadata) for design in DESIGNS for metadata in (DESIGNS[design].metadata or (None,))]
OLDEST_FIRST = {"tracing-multi-v2", "tracing-multi-v2-fixed", "tracing-multi-v1"}


def body(slots):
    """Counts its calls in a per-CPU word, and weighs its arguments, so that their order matters."""
    lines = ["inc qword ptr gs:[percpu.sched_clock]", "xor eax, eax"]
    for number in range(slots):
        where = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
        operand = where[number] if number < 6 else f"qword ptr [rsp + {8 + 8 * (number - 6):#x}]"
        lines += [f"imul r10, {operand}, {number + 1}", "add rax, r10"]
    # What a C function may leave in registers that it need not keep.
    lines += [f"mov {register}, 0x7ead" for register in ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11")]
    return "\n".join([*lines, "ret"])


def value(args):
    return sum((number + 1) * arg for number, arg in enumerate(args)) & MASK


def wide(slots):
    args = ", ".join(f"u64 a{number}" for number in range(slots)) or "void"
    return FunctionText(f"wide{slots}", body(slots), f"u64 wide{slots}({args})")


FUNCTIONS = AssemblyFunctions(tuple(wide(slots) for slots in range(13)))


def memory(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    return (
        kernel.machine.read(kernel.layout.text, 1 << 16),
        dict(kernel.execmem.images),
        sorted(kernel.percpu.objects.values()),
        sorted(kernel.slab.objects.values()),
        dict(kernel.ftrace.direct_functions),
        kernel.ftrace.ops,
        kernel.rcu.pending,
        len(lab.trampolines),
    )


def calls(lab):
    return lab.kernel.percpu_areas[0] + PERCPU.offset("sched_clock")


@pytest.fixture(scope="module", params=[(*way, flavour) for way in WAYS for flavour in RELEASES], ids=str)
def contract_lab(request):
    design, metadata, flavour = request.param
    with Lab(flavour, functions=(FUNCTIONS,), design=design, metadata=metadata) as lab:
        lab.metadata = metadata
        yield lab


def attach(lab, kind, slots, programs, sleepable, seen, result):
    """Programs in attach order, every second one through a multi link with two functions and two cookies."""
    links = []
    for number in range(programs):
        def run(ctx, number=number):
            # Of fexit and fmod_ret the return value so far; fentry programs have none.
            ret = lab.kernel.machine.read_u64(ctx.address + 8 * ctx.count) if kind != "fentry" else None
            seen.append((number, ctx.slots[:slots], ctx.count, ctx.ip, ctx.cookie, ret))
            return result if number == 0 and kind == "fmod_ret" else 0

        multi = number % 2 == 1 or lab.design.name in OLDEST_FIRST
        prog = lab.prog(f"{kind}_multi" if multi else kind, run, name=f"p{number}", sleepable=sleepable)
        if multi:
            names = [f"wide{slots}", f"wide{slots - 1 if slots else 1}"]
            links.append(lab.attach_multi(prog, names, cookies=[100 + number, 200 + number]))
        else:
            links.append(lab.attach(prog, f"wide{slots}", cookie=100 + number))
        lab.programs.put(prog)
    return links


@pytest.mark.parametrize("sleepable", [False, True], ids=["", "sleepable"])
@pytest.mark.parametrize("programs", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_contract(contract_lab, kind, programs, sleepable):
    lab = contract_lab
    # Each number of slots meets each number of programs, and sleepable programs as well as others; not all three.
    for slots in range((programs + sleepable) % 2, 13, 2):
        for result in (0, SKIPS_ORIGINAL) if kind == "fmod_ret" else (0,):
            keeps_the_contract(lab, kind, slots, programs, sleepable, result)


def keeps_the_contract(lab, kind, slots, programs, sleepable, result):
    before, seen = memory(lab), []
    machine, args = lab.kernel.machine, tuple(0x1111_1111_1111_1111 * (n + 1) & MASK for n in range(slots))
    refusal = expected_refusal(lab, kind, slots)
    if refusal:
        with pytest.raises(KernelError) as caught:
            attach(lab, kind, slots, programs, sleepable, seen, result)
        assert caught.value.errno in refusal
        return
    links = attach(lab, kind, slots, programs, sleepable, seen, result)
    vcpu = machine.vcpus[0]
    kept = {register: 0xCA11EE00 + number for number, register in enumerate(CALLEE_SAVED)}
    for register, content in kept.items():
        setattr(vcpu.regs, register, content)
    machine.write_u64(calls(lab), 0)
    call = lab.call(f"wide{slots}", *args[:6], stack_args=args[6:])
    order = range(programs) if lab.design.name in OLDEST_FIRST else reversed(range(programs))
    order = list(order)
    ip = lab.kernel.function(f"wide{slots}").address
    count = lab.design.trampolines.images.slots(lab.target(f"wide{slots}")) if lab.design.name == "generic" else slots
    skipped = kind == "fmod_ret" and result
    if skipped and 0 in order[:-1]:
        order = order[: order.index(0) + 1]
    expected = [(n, args, count, ip, 100 + n) for n in order] * (2 if kind == "fsession" else 1)
    assert [entry[:5] for entry in seen] == expected, (slots, result)
    returns = [entry[5] for entry in seen]
    if kind == "fexit":
        assert returns == [value(args)] * programs
    elif kind == "fsession":
        assert returns == [0] * programs + [value(args)] * programs
    elif kind == "fmod_ret":
        assert returns == [0] * len(order)
    assert call.value == (result if skipped else value(args))
    assert machine.read_u64(calls(lab)) == (0 if skipped else 1)
    assert {register: getattr(vcpu.regs, register) for register in CALLEE_SAVED} == kept
    for link in links:
        link.detach()
    assert memory(lab) == before
    assert lab.call(f"wide{slots}", *args[:6], stack_args=args[6:]).value == value(args)


def expected_refusal(lab, kind, slots):
    """Error codes with which this must be refused; none where it must work."""
    codes = set()
    if kind == "fsession" and not lab.release.trampoline.fsession:
        codes.add(EINVAL)
    if slots > lab.release.trampoline.max_slots:
        codes.add(ENOTSUPP)
    if lab.design.name in OLDEST_FIRST:
        # The posted series: no session programs, arguments in registers only, and the first version needs padding.
        if kind == "fsession":
            codes.add(EINVAL)
        if slots > 6 or (lab.design.name == "tracing-multi-v1" and not lab.kernel.entry.padding):
            codes.add(EOPNOTSUPP)
    return codes
