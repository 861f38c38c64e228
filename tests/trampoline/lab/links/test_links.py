"""The contract of every kind of link, on every design: attach, functions, program, cookie, update, detach, failure."""

from collections.abc import Callable
from dataclasses import dataclass
from errno import EINVAL, ENOMEM
from pathlib import Path

import pytest

from emu.kernel.process_context import PointKind
from refusals import refused
from trampoline.bpf.errors import KernelError, TrampolineError
from trampoline.designs import DESIGNS
from trampoline.lab import Lab
from trampoline.lab.links import link as interface
from trampoline.lab.links.link import Link
from trampoline.lab.links.tracing import TracingLink
from trampoline.lab.links.tracing_multi import TracingMultiLink
from trampoline.update.bpf_trampoline import BpfTrampoline

TRACED, OTHER = "bpf_fentry_test1", "bpf_fentry_test3"
COOKIE, OTHER_COOKIE = 7, 1 << 63


@dataclass(frozen=True)
class Kind:
    """One kind of link: an attach type for it, what attaches a program by it, its functions with their cookies."""

    link: type[Link]
    attach_type: str
    attach: Callable[[Lab, object], Link]
    cookies: dict[str, int]


KINDS = {
    "tracing": Kind(
        TracingLink, "fentry", lambda lab, prog: lab.attach(prog, TRACED, cookie=COOKIE), {TRACED: COOKIE}
    ),
    "tracing_multi": Kind(
        TracingMultiLink,
        "fentry_multi",
        lambda lab, prog: lab.attach_multi(prog, [TRACED, OTHER], cookies=[COOKIE, OTHER_COOKIE]),
        {TRACED: COOKIE, OTHER: OTHER_COOKIE},
    ),
}
"""By the name of its file."""
ARGS = {TRACED: (1,), OTHER: (1, 2, 3)}


def test_every_kind_keeps_the_contract():
    files = {path.stem for path in Path(interface.__file__).parent.glob("*.py")} - {"__init__", "link"}
    assert files == set(KINDS)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=DESIGNS)
def linked_lab(request, make_lab):
    return make_lab("6.12", design=request.param)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def prog(linked_lab, kind, seen):
    return linked_lab.prog(kind.attach_type, lambda ctx: seen.append((ctx.ip, ctx.cookie)), name="linked")


def state(lab, prog):
    kernel = lab.kernel
    kernel.rcu.settle()
    return (
        {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()},
        len(lab.trampolines),
        dict(kernel.ftrace.direct_functions),
        prog.refs,
    )


def runs(lab, seen):
    """What the program sees when each function is called once: its cookie by function, as often as it ran."""
    seen.clear()
    for name, args in ARGS.items():
        lab.call(name, *args)
    names = {lab.kernel.function(name).address: name for name in ARGS}
    return [(names[ip], cookie) for ip, cookie in seen]


def test_attached_until_detached(linked_lab, kind, prog, seen):
    before = state(linked_lab, prog)
    link = kind.attach(linked_lab, prog)
    assert type(link) is kind.link
    assert (link.attached, link.program, link.functions) == (True, prog, tuple(kind.cookies))
    assert {name: link.cookie(name) for name in link.functions} == kind.cookies
    assert runs(linked_lab, seen) == list(kind.cookies.items())
    assert prog.refs > before[-1]
    link.detach()
    assert not link.attached
    assert runs(linked_lab, seen) == []
    assert state(linked_lab, prog) == before


def test_attached_and_detached_again(linked_lab, kind, prog, seen):
    link = kind.attach(linked_lab, prog)
    with pytest.raises(TrampolineError, match="linked is attached already"):
        link.attach()
    link.detach()
    with pytest.raises(TrampolineError, match="linked is detached already"):
        link.detach()
    link.attach()
    assert runs(linked_lab, seen) == list(kind.cookies.items())
    link.detach()
    assert runs(linked_lab, seen) == []


def test_a_block_detaches_at_its_end(linked_lab, kind, prog):
    with kind.attach(linked_lab, prog) as link:
        assert link.attached
    assert not link.attached
    with kind.attach(linked_lab, prog) as link:
        link.detach()
    assert not link.attached


def test_tells_its_progress(linked_lab, kind, prog):
    link = kind.attach(linked_lab, prog)
    for change in (link.detach, link.attach):
        told = []
        change(lambda told=told: told.append(1))
        assert len(told) == len(kind.cookies)


def test_programs_of_probes_are_not_replaced(linked_lab, kind, prog, seen):
    link = kind.attach(linked_lab, prog)
    other = linked_lab.prog(kind.attach_type, lambda ctx: seen.append("other"))
    refused(EINVAL, link.update, other)
    refused(EINVAL, link.update, other, replaces=prog)
    assert (link.program, other.refs) == (prog, 1)
    assert runs(linked_lab, seen) == list(kind.cookies.items())


def test_no_cookie_of_a_function_that_it_is_not_on(linked_lab, kind, prog):
    link = kind.attach(linked_lab, prog)
    with pytest.raises(TrampolineError, match="schedule"):
        link.cookie("schedule")
    if len(kind.cookies) == 1:
        assert link.cookie() == COOKIE
    else:
        with pytest.raises(TrampolineError, match="2 functions"):
            link.cookie()


@pytest.mark.parametrize("point", [PointKind.ALLOC, PointKind.PATCH])
def test_a_failed_attach_leaves_nothing(linked_lab, kind, prog, seen, point):
    if kind.link is TracingMultiLink and not DESIGNS[linked_lab.design.name].sound:
        pytest.skip("what its defects leave is in designs/test_tracing_multi_defects.py")
    before = state(linked_lab, prog)
    with linked_lab.kernel.process.fail_at(point, 1, lambda what: KernelError(ENOMEM, what)):
        refused(ENOMEM, kind.attach, linked_lab, prog)
    assert state(linked_lab, prog) == before
    assert runs(linked_lab, seen) == []


def test_a_plain_link_is_linked_as_recordings_are_replayed(linked_lab, monkeypatch):
    """The replay of recordings makes a TracingLink as well (``trampoline.tools.golden.replay``)."""
    done = []
    for name in ("link_prog", "unlink_prog"):
        real = getattr(BpfTrampoline, name)
        monkeypatch.setattr(
            BpfTrampoline, name, lambda tramp, link, name=name, real=real: (done.append(name), real(tramp, link))
        )
    with linked_lab.attach(linked_lab.prog("fexit", "xor eax, eax\nret"), TRACED):
        assert done == ["link_prog"]
    assert done == ["link_prog", "unlink_prog"]
