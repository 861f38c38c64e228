"""Plain and multi links, a tracer and a livepatch on one function: in any order they come and go, all of them work."""

from itertools import permutations

import pytest
from kernel_releases import RELEASES

from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.text.functions import FunctionText
from refusals import errno_of
from trampoline.designs import DESIGNS as ALL_DESIGNS

pytestmark = pytest.mark.slow

NAME, OTHERS = "bpf_fentry_test2", ["bpf_fentry_test1", "bpf_fentry_test3"]
ARGS, VALUE, PATCHED = (3, 4), 7, 1007
KINDS = ("fentry", "fexit", "fmod_ret", "fsession")
DESIGNS = [design for design in ALL_DESIGNS if design != "tracing-multi-v2"]
"""The series as posted goes down with a livepatch (designs/test_tracing_multi_defects.py)."""
MAY_REFUSE = frozenset({"tracing-multi-v1", "tracing-multi-v2-fixed"})
"""Designs that answer others on their functions with an error, and run programs oldest first."""
LIVEPATCH = "livepatch"


class Crowd:
    """Users of one function, by name, that come and go; what runs in a call is compared with the documented order."""

    def __init__(self, lab, kind):
        self.lab, self.kind, self.ran, self.there, self.links = lab, kind, [], [], {}
        self.patch = LivePatch(lab.kernel, NAME, "instead")
        site = lab.kernel.function(NAME).site
        self.tracer = FtraceOps("tracer", lambda ip, *_: self.ran.append("tracer"), FtraceOpsFlag(0), filter={site})
        plain, one, two = (self.prog(name) for name in ("plain", "one", "two"))
        self.comes = {
            "plain": lambda: lab.attach(plain, NAME, cookie=1),
            "one": lambda: lab.attach_multi(one, [OTHERS[0], NAME], cookies=[10, 11]),
            "two": lambda: lab.attach_multi(two, [NAME, *OTHERS], cookies=[21, 22, 23]),
            "tracer": lambda: lab.kernel.ftrace.register_ftrace_function(self.tracer),
            LIVEPATCH: self.patch.enable,
        }
        self.goes = {
            "tracer": lambda: lab.kernel.ftrace.unregister_ftrace_function(self.tracer),
            LIVEPATCH: self.patch.disable,
        }

    def prog(self, name):
        kind = self.kind if name == "plain" else f"{self.kind}_multi"
        cookie = {"plain": 1, "one": 11, "two": 21}[name]

        def run(ctx):
            # What they see is theirs, whoever else is there.
            self.ran.append((name, ctx.args, ctx.cookie == cookie, ctx.ret if self.kind == "fexit" else 0))

        return self.lab.prog(kind, run, name=name)

    def attach(self, name):
        """Whether it is there now; a design may refuse, and then nothing is different."""
        before = text(self.lab)
        refused = errno_of(lambda: self.links.__setitem__(name, self.comes[name]()))
        if refused:
            assert self.lab.design.name in MAY_REFUSE, f"{name} is refused with {refused}"
            assert text(self.lab) == before
            return False
        self.there.append(name)
        self.check()
        return True

    def detach(self, name):
        self.there.remove(name)
        link = self.links.pop(name)
        self.goes.get(name, lambda: link.detach())()
        self.check()

    def check(self):
        """Who runs, in the documented order: the tracer, and programs of a kind newest first."""
        self.ran.clear()
        value = PATCHED if LIVEPATCH in self.there else VALUE
        assert self.lab.call(NAME, *ARGS).value == value
        programs = [name for name in reversed(self.there) if name in ("plain", "one", "two")]
        runs = 2 if self.kind == "fsession" else 1
        expected = ["tracer"] * ("tracer" in self.there) + runs * [
            (name, ARGS, True, value if self.kind == "fexit" else 0) for name in programs
        ]
        if self.lab.design.name in MAY_REFUSE:
            assert sorted(self.ran, key=str) == sorted(expected, key=str)
        else:
            assert self.ran == expected


def text(lab):
    lab.kernel.rcu.settle()
    return {name: lab.kernel.machine.read(f.address, f.size) for name, f in lab.kernel.functions.items()}


def state(lab):
    kernel, found = lab.kernel, text(lab)
    return (
        found, dict(kernel.execmem.images), sorted(kernel.slab.objects.values()), dict(kernel.percpu.objects),
        len(lab.trampolines), kernel.ftrace.ops, dict(kernel.ftrace.direct_functions), kernel.rcu.pending,
        [prog.refs for prog in lab.programs.loaded.values()],
        {ip: record.flags for ip, record in kernel.ftrace.records.items()},
    )  # fmt: skip


@pytest.fixture
def crowd(make_lab):
    def make(flavour, design, kind):
        lab = make_lab(flavour, design=design)
        lab.kernel.add_functions(FunctionText("instead", f"mov eax, {PATCHED}\nret", traceable=False))
        return Crowd(lab, kind)

    return make


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flavour", RELEASES)
def test_two_of_them(crowd, flavour, design, kind):
    if kind == "fsession" and not RELEASES[flavour].trampoline.fsession:
        return
    users = crowd(flavour, design, kind)
    before = state(users.lab)
    for first, second in permutations(users.comes, 2):
        for last_in in (True, False):
            there = [name for name in (first, second) if users.attach(name)]
            for name in reversed(there) if last_in else there:
                users.detach(name)
    assert state(users.lab) == before


@pytest.mark.parametrize("design", DESIGNS)
def test_all_of_them_in_every_order(crowd, design):
    """Every order of coming, each with another order of going."""
    users = [crowd("7.2", design, kind) for kind in KINDS]
    before = [state(crowd.lab) for crowd in users]
    orders = list(permutations(users[0].comes))
    for number, coming in enumerate(orders):
        going = orders[(number * 49 + 17) % len(orders)]
        # Kinds take turns.
        here = users[number % len(users)]
        there = [name for name in coming if here.attach(name)]
        for name in going:
            if name in there:
                here.detach(name)
    assert [state(crowd.lab) for crowd in users] == before


def test_a_detach_overtaken_by_the_end_of_grace_periods(make_lab):
    # What the list function needed is freed while the next direct_functions is being made; it is freed once.
    for steps in range(1, 400):
        lab = make_lab("6.12", design="batched")
        patch = LivePatch(lab.kernel, NAME, lab.kernel.function("bpf_fentry_test1").address)
        patch.enable()
        link = lab.attach(lab.prog("fmod_ret", "xor eax, eax\nret"), NAME)
        task = lab.kernel.process.start(link.detach)
        for _ in range(steps):
            task.step()
        lab.kernel.rcu.settle()
        if task.done:
            break
        task.finish()
        patch.disable()
        lab.kernel.rcu.settle()
        assert not any("direct_functions" in name for name in lab.kernel.slab.objects.values())
        lab.close()
    assert steps > 10
