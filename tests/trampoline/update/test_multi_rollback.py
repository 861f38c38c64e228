"""All or nothing: attaching to many functions, and detaching, that fail at any step leave everything as it was."""

from collections import Counter
from errno import EINVAL, ENOMEM

import pytest

from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.process_context import CAN_FAIL, PointKind
from emu.kernel.text.functions import FunctionText
from refusals import errno_of, refused
from trampoline.bpf.errors import KernelError
from trampoline.bpf.uapi import ATTACH_WORDS
from trampoline.designs import DESIGNS

pytestmark = pytest.mark.slow

KINDS = [word for word, kind in ATTACH_WORDS.items() if kind.is_multi]
NAMES = [f"bpf_fentry_test{number}" for number in range(1, 7)]
ARGS = {name: tuple(range(1, number + 1)) for number, name in enumerate(NAMES, 1)}
VALUES = {"bpf_fentry_test1": 2} | {name: sum(args) for name, args in ARGS.items() if len(args) > 1}
NOTHING = "xor eax, eax\nret"
AS_POSTED = "tracing-multi-v2"
"""The posted series as it is, which leaks (designs/test_tracing_multi_defects.py)."""


def state(lab):
    """Text, tables, memory and counts: whatever attaching changes."""
    kernel = lab.kernel
    kernel.rcu.settle()
    assert kernel.rcu.pending == 0
    return {
        "text": {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()},
        "padding": [kernel.machine.read(kernel.function(name).address - 16, 16) for name in NAMES],
        "images": dict(kernel.execmem.images),
        # Tables are replaced as a whole, and by an equal one again.
        "slab": Counter(kernel.slab.objects.values()),
        "percpu": dict(kernel.percpu.objects),
        "symbols": len(kernel.kallsyms),
        # One that was taken off and comes back is the newest.
        "ops": sorted((ops.name, ops.flags, sorted(ops.filter), sorted(ops.sites)) for ops in kernel.ftrace.ops),
        "direct": dict(kernel.ftrace.direct_functions),
        "records": {
            ip: (names_of(record.users), names_of(record.patched), record.flags, record.address)
            for ip, record in kernel.ftrace.records.items()
        },
        "trampolines": {
            trampoline.target.name: (
                trampoline.refcnt,
                trampoline.flags,
                [(kind, link.prog, link.cookie, link.linked) for kind, link in trampoline.links],
                trampoline.cur_image and trampoline.cur_image.image,
                trampoline.mutex.held,
            )
            for trampoline in lab.trampolines
        },
        "programs": [(prog, prog.refs) for prog in lab.programs.loaded.values()],
        "module": kernel.modules["bpf_testmod"].refs,
    }


def names_of(users):
    return sorted(ops.name for ops in users)


def loose(lab):
    """The same without the addresses of what is made anew where an operation succeeds."""
    found = state(lab)
    found["images"], found["slab"], found["percpu"] = (
        Counter(found[name].values()) for name in ("images", "slab", "percpu")
    )
    return {name: found[name] for name in ("images", "slab", "percpu", "symbols", "programs", "module")}


def crowded(lab):
    """Functions that others use already: each kind of change to a site is in the batch."""
    lab.attach(lab.prog("fexit", NOTHING), NAMES[1])
    lab.attach(lab.prog("fentry", NOTHING), NAMES[4])
    lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES[2:5])
    tracer = FtraceOps("tracer", "ftrace_stub", filter={lab.kernel.function(name).site for name in NAMES[3:5]})
    lab.kernel.ftrace.register_ftrace_function(tracer)
    lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
    LivePatch(lab.kernel, NAMES[5], "instead").enable()


def nobody(lab):
    """Functions that nobody uses."""


@pytest.fixture(params=[design for design in DESIGNS if design != AS_POSTED])
def lab(request, make_lab):
    lab = make_lab("7.2", design=request.param)
    lab.load_testmod()
    return lab


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [nobody, crowded])
def test_failing_at_every_step(lab, others, kind):
    names = [*NAMES, "bpf_testmod:bpf_testmod_test_struct_arg_3"]
    prog = lab.prog(kind, NOTHING)
    empty = state(lab)
    if errno_of(lambda: others(lab)) or errno_of(lambda: lab.attach_multi(prog, names).detach()):
        # A design may refuse to be where others are: then it does so as a whole.
        assert others is crowded or state(lab) == empty
        return
    values = {name: lab.call(name, *ARGS[name]).value for name in NAMES}
    links = []

    def attach():
        links.append(lab.attach_multi(prog, names))

    def detach():
        links[0].detach()
        links.pop()

    for operation, back in ((attach, detach), (detach, attach)):
        steps = points_of(lab, operation)
        back()
        assert steps[PointKind.PATCH] >= len(names)
        for point, nth in ((kind, nth + 1) for kind in sorted(CAN_FAIL) for nth in range(steps[kind])):
            before, loosely = state(lab), loose(lab)
            with lab.kernel.process.fail_at(point, nth, lambda what: KernelError(ENOMEM, what)):
                failed = errno_of(operation)
            after = state(lab)
            if not failed:
                # Releasing an image goes on where its text can't be written.
                back()
                assert loose(lab) == loosely
                continue
            assert failed == ENOMEM
            for what in before:
                assert after[what] == before[what], f"{what} after {point} {nth} of {steps[point]}"
        assert {name: lab.call(name, *ARGS[name]).value for name in NAMES} == values
        operation()
    assert not links


def points_of(lab, operation):
    """How many points of each kind an operation has."""
    points = []
    lab.kernel.process.watchers.append(points.append)
    operation()
    lab.kernel.process.watchers.remove(points.append)
    return Counter(point.kind for point in points)


@pytest.mark.parametrize("kind", KINDS)
def test_unexpected_bytes_at_the_last_function(lab, kind):
    prog, site = lab.prog(kind, NOTHING), lab.kernel.function(NAMES[-1]).site
    if errno_of(lambda: lab.attach_multi(prog, NAMES).detach()):
        return
    lab.kernel.machine.load(site, b"\x90" * 5)
    before = state(lab)
    refused(EINVAL, lab.attach_multi, prog, NAMES)
    assert state(lab) == before
