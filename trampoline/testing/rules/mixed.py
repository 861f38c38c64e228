"""Several on one function: programs of several kinds in any order, and others after a change that failed."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from trampoline.bpf.uapi import AttachType
from trampoline.testing.reference_model import ModelProgram
from trampoline.testing.rules.base import MOST_LINKS, Linked, step
from trampoline.testing.rules.ftrace_users import UserSteps, Visitor

_MOST_TOGETHER = 3
_MOST_POINTS = 40
_OTHERS = {"nobody": 0, "tracer": 1, "two tracers": 2, "livepatch": 1}
"""How many others are there beside programs."""


class MixedSteps(UserSteps):
    """Several on one function."""

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(
        data=st.data(),
        multi=st.booleans(),
        together=st.integers(1, _MOST_TOGETHER),
        beside=st.sampled_from(("nobody", "tracer", "two tracers", "livepatch")),
    )
    @step
    def some_together(self, data: st.DataObject, multi: bool, together: int, beside: str) -> None:
        """Programs of any kinds, and others perhaps, come to one function in any order, and go in another."""
        name = self.draw_function(data)
        function = self.reference.functions[name]
        if not self.may_change((name,)):
            return
        taken = beside == "livepatch" and (function.patched or function.direct is not None)
        others = _OTHERS[beside] if self.traits.shares_sites and not taken else 0
        when = [data.draw(st.integers(0, together), "another comes as") for _ in range(others)]
        came: list[Linked | Visitor] = []
        for number in range(together + 1):
            for _ in range(when.count(number)):
                visitor = self.visitor(name, livepatch=beside == "livepatch")
                self._visit(name, visitor, on=True)
                came.append(visitor)
            program = self.draw_program(data, multi=multi)
            if number < together and not self.reference.refusals(program, (name,), multi=multi):
                came.append(linked := self._comes(data, program, name, multi=multi))
                if data.draw(st.booleans(), "comes again"):
                    wanted = self.draw_cookies(data, program, (name,))
                    refusals = self.reference.refusals(program, (name,), multi=multi)
                    self.all_or_nothing(self.attaching(linked.loaded, (name,), wanted), refusals, names=(name,))
        for one in data.draw(st.permutations(came), "go in this order"):
            if isinstance(one, Visitor):
                self._visit(name, one, on=False)
            else:
                self._leaves(one)

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data(), multi=st.booleans(), livepatch=st.sampled_from((False, True, True)))
    @step
    def others_after_failures(self, data: st.DataObject, multi: bool, livepatch: bool) -> None:
        """A program comes to a function that has another, and goes; after each failure on the way somebody else is
        there for a while, to whom it must be as if nobody had tried.
        """
        free = [name for name in self.names if not self.reference.is_used(name)]
        if not free:
            return
        name = data.draw(st.sampled_from(free), "function")
        two_kinds = data.draw(st.permutations(self.traits.kinds(self.release.trampoline)), "kinds")[:2]
        pair = [self.draw_program(data, kind=kind) for kind in two_kinds]
        if any(self.reference.refusals(program, (name,), multi=multi) for program in pair):
            return

        visitor = self.visitor(name, livepatch=livepatch)

        def visit() -> None:
            self._visit(name, visitor, on=True)
            self._visit(name, visitor, on=False)

        stays = self._comes(data, pair[0], name, multi=multi)
        loaded = self.load(pair[1], multi=multi, sleepable=False)
        wanted = self.draw_cookies(data, pair[1], (name,))
        if not self.reference.refusals(pair[1], (name,), multi=multi):
            attach = self.attaching(loaded, (name,), wanted)
            link = self.fails_everywhere(data, attach, (name,), _MOST_POINTS, then=visit)
            comes = self.attached(loaded, (name,), wanted, link)
            self.let_go(loaded)
            self.compare_calls((name,))
            self.fails_everywhere(data, link.detach, (name,), _MOST_POINTS, then=visit)
            self.detached(comes)
            self.compare_calls((name,))
        else:
            self.let_go(loaded)
        self._leaves(stays)

    def _visit(self, name: str, visitor: Visitor, *, on: bool) -> None:
        """Somebody else comes or goes."""
        (visitor.come if on else visitor.go)()
        visitor.tell(self.reference, on)
        self.compare_calls((name,))

    def _comes(self, data: st.DataObject, program: ModelProgram, name: str, *, multi: bool) -> Linked:
        sleepable = program.kind is not AttachType.LSM_CGROUP and data.draw(st.booleans(), "sleepable")
        loaded = self.load(program, multi=multi, sleepable=sleepable)
        linked = self.come(data, loaded, (name,))
        self.let_go(loaded)
        self.compare_calls((name,))
        return linked

    def _leaves(self, linked: Linked) -> None:
        self.go(linked)
        self.compare_calls(linked.names)
