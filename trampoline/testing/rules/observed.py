"""Changes observed midway by another CPU, which calls the changed functions between any two writes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from asm.encodings import NOPS, call_rel32
from emu.errors import MachineError
from emu.kernel.process_context import ControlTask, PointKind
from emu.kernel.text.text_poke import VECTOR_SIZE
from trampoline.testing.instrumented_lab import AREA, AREA_SITES, COUNTS, DIRECT_CALLERS
from trampoline.testing.reference_model import Reference
from trampoline.testing.rules.base import MOST_LINKS, step
from trampoline.testing.rules.ftrace_users import UserSteps

OBSERVER = 1
"""CPU that calls during a change."""
_TOO_LONG = 20_000
"""Maximum number of points of one change; more is a failure."""


class ObservedSteps(UserSteps):
    """Steps whose changes are observed midway."""

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(data=st.data(), multi=st.booleans(), every=st.integers(2, 7))
    @step
    def observed_attach(self, data: st.DataObject, multi: bool, every: int) -> None:
        """Attaches and detaches a link while another CPU calls its functions: each call shows it or doesn't, and is
        right.
        """
        program = self.draw_program(data, multi=multi)
        names = self.draw_functions(data, multi=multi)
        if self.reference.refusals(program, names, multi=multi) or not self.may_change(names):
            return
        wanted = self.draw_cookies(data, program, names)
        loaded = self.load(program, multi=multi, sleepable=False)
        attach = self.attaching(loaded, names, wanted)
        cookie_of = dict(zip(names, wanted, strict=True))

        def come(reference: Reference, some: Sequence[str]) -> None:
            reference.attach(program, some, [cookie_of[name] for name in some], multi=multi)

        link = self._observe(attach, names, every, come)
        self._observe(link.detach, names, every, lambda reference, some: reference.detach(program, some))
        self.release_program(loaded)

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data(), every=st.integers(2, 6), who=st.sampled_from(("tracer", "livepatch", "direct")))
    @step
    def observed_user(self, data: st.DataObject, every: int, who: str) -> None:
        """Registers, changes and unregisters another user of a function while another CPU calls it."""
        name = self.draw_function(data)
        function, watched = self.reference.functions[name], self.watched
        if not self.may_change((name,)):
            return
        changes: list[tuple[Callable[[], Any], Callable[[Reference], None]]] = []
        if who != "direct":
            if who == "livepatch" and (function.patched or function.direct is not None):
                return
            visitor = self.visitor(name, livepatch=who == "livepatch")
            changes.append((visitor.come, lambda one: visitor.tell(one, True)))
            changes.append((visitor.go, lambda one: visitor.tell(one, False)))
        else:
            if function.attached or function.patched or function.direct is not None:
                return
            ops = watched.direct_ops((name,))
            changes.append((partial(watched.direct, ops, 0), lambda one: one.direct((name,), 0)))
            changes.append((partial(watched.redirect, ops, 1), lambda one: one.direct((name,), 1)))
            changes.append((partial(watched.undirect, ops, 1), lambda one: one.direct((name,), None)))
        for change, modelled in changes:

            def changed(reference: Reference, some: Sequence[str], modelled: Any = modelled) -> None:
                if some:
                    modelled(reference)

            self._observe(change, (name,), every, changed)

    @rule(data=st.data(), every=st.integers(2, 5))
    @step
    def observed_patches(self, data: st.DataObject, every: int) -> None:
        """Patches unused sites directly, in any order, some queued and one by itself, and back again."""
        free = [name for name in self.names if not self.reference.is_used(name)]
        if not free:
            return
        names = tuple(data.draw(st.permutations(free), "order")[:3])
        kernel = self.lab.kernel
        caller = kernel.kallsyms.address(DIRECT_CALLERS[0])
        sites = [kernel.function(name).site or 0 for name in names]

        def patch(on: bool) -> None:
            poke = kernel.text_poke
            with poke.text_mutex:
                for site in sites[:-1]:
                    poke.batch_add(site, call_rel32(site, caller) if on else NOPS[5])
                poke.text_poke_bp(sites[-1], call_rel32(sites[-1], caller) if on else NOPS[5])
                poke.batch_finish()

        for on in (True, False):

            def reached(reference: Reference, some: Sequence[str], on: bool = on) -> None:
                reference.direct(some, 0 if on else None)

            self._observe(partial(patch, on), names, every, reached)

    @rule(
        many=st.sampled_from((VECTOR_SIZE - 1, VECTOR_SIZE, VECTOR_SIZE + 1, AREA_SITES)),
        first=st.sampled_from((0, 1, VECTOR_SIZE // 2)),
    )
    @step
    def long_batch(self, many: int, first: int) -> None:
        """Patches about as many sites as one batch takes, in order or not, and back again, and checks all of them."""
        kernel = self.lab.kernel
        function, counts = kernel.function(AREA), kernel.kallsyms.address(COUNTS)
        nops = kernel.machine.read(function.address, function.size).find(NOPS[5])
        sites = [function.address + nops + 5 * number for number in range(many)]
        for on in (True, False):
            with kernel.text_poke.text_mutex:
                for site in (*sites[first:], *sites[:first]):
                    kernel.text_poke.batch_add(site, call_rel32(site, counts) if on else NOPS[5])
                kernel.text_poke.batch_finish()
            found = self.lab.call(function.address).value
            assert found == on * many, f"of {many} sites in a batch {found} call what {many * on} should"

    def _observe(
        self,
        operation: Callable[[], Any],
        names: Sequence[str],
        every: int,
        change: Callable[[Reference, Sequence[str]], None],
    ) -> Any:
        """Steps an operation that changes functions; calls one on another CPU at every ``every``-th point.

        Each function changes atomically, but not all at the same time. The other CPU may or may not see written text
        before it serialises.
        """
        possible = [self.reference.fork() for _ in range(1 << len(names))]
        for number, reference in enumerate(possible):
            change(reference, [name for bit, name in enumerate(names) if number >> bit & 1])
        kernel = self.lab.kernel
        sites = {kernel.function(name).site or 0: name for name in names}
        task = kernel.process.start(operation)
        steps = 0
        try:
            while not task.done:
                task.step()
                steps += 1
                assert steps < _TOO_LONG, "a change does not end"
                if task.at is not None and task.at.kind is PointKind.GRACE_PERIOD:
                    kernel.rcu.poll()
                written = self._written(task, sites)
                if written is not None or steps % every == 0:
                    self._observe_call(written or names[steps // every % len(names)], steps, possible)
        finally:
            if not task.done:
                task.abandon()
        change(self.reference, names)
        return task.result

    def _written(self, task: ControlTask, sites: dict[int, str]) -> str | None:
        """Function whose site is about to be written; the observer may see earlier writes."""
        at = task.at
        if at is None or at.kind is not PointKind.TEXT_WRITE or not isinstance(at.on, tuple):
            return None
        return next((name for site, name in sites.items() if site <= at.on[0] < site + 5), None)

    def _observe_call(self, name: str, steps: int, possible: Sequence[Reference]) -> None:
        site = self.lab.kernel.function(name).site or 0
        if steps % 2:
            with suppress(MachineError):
                self.lab.kernel.machine.vcpus[OBSERVER].see_new(site)
        model = self.watched.functions[name].model
        args = self.watched.functions[name].distinct(steps)
        happened, value = self.watched.call(name, args, cpu=OBSERVER)
        cut = (1 << 8 * model.ret_size) - 1
        known = {loaded.program.number for loaded in self.loaded}
        counted = {number: pair for number, pair in self.watched.counted().items() if number in known}
        allowed, fits = [], None
        for reference in possible:
            events, result = reference.call(name, args, OBSERVER)
            allowed.append((events, result & cut))
            same = all((reference.misses[n], reference.runs[n]) == pair for n, pair in counted.items())
            if allowed[-1] == (happened, value) and same:
                fits = reference
                break
        assert fits is not None, f"{name}: {happened} and {value:#x}, not one of {allowed}, with the counts that follow"
        for reference in (self.reference, *possible):
            reference.misses, reference.runs = fits.misses.copy(), fits.runs.copy()
