"""Links come and go: one program, many, on one function and on many, and what must be refused."""

from errno import EINVAL
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from trampoline.bpf.uapi import AttachType
from trampoline.testing.reference_model import ModelProgram
from trampoline.testing.rules.base import (
    CROWD,
    INNER,
    MOST_LINKS,
    NO_RETURN,
    Failure,
    LabSteps,
    Linked,
    LoadedProgram,
    step,
)

LINKS = Bundle("links")
PROGRAMS = Bundle("programs")


class LinkSteps(LabSteps):
    """Links."""

    filled = False

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=LINKS, data=st.data(), multi=st.booleans(), sleepable=st.booleans())
    @step
    def attach(self, data: st.DataObject, multi: bool, sleepable: bool) -> Any:
        """A new program comes; memory or patching may fail on the way."""
        program = self.draw_program(data, sleepable=sleepable, multi=multi)
        loaded = self.load(program, multi=multi, sleepable=sleepable)
        names = self.draw_functions(data, multi=multi)
        made = self._attach(data, loaded, names, self.draw_failure(data))
        self.let_go(loaded)
        return multiple() if made is None else made

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=LINKS, data=st.data(), one=LINKS)
    @step
    def attach_again(self, data: st.DataObject, one: Linked) -> Any:
        """A program that is on functions already comes to others, or to the same."""
        made = self._attach(
            data, one.loaded, self.draw_functions(data, multi=one.loaded.multi), self.draw_failure(data)
        )
        return multiple() if made is None else made

    @rule(target=PROGRAMS, data=st.data(), multi=st.booleans(), sleepable=st.booleans())
    @step
    def keep_program(self, data: st.DataObject, multi: bool, sleepable: bool) -> LoadedProgram:
        """A program that stays while its links come and go."""
        program = self.draw_program(data, sleepable=sleepable, multi=multi)
        return self.load(program, multi=multi, sleepable=sleepable)

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=LINKS, data=st.data(), loaded=PROGRAMS)
    @step
    def attach_kept(self, data: st.DataObject, loaded: LoadedProgram) -> Any:
        """It comes to functions, for the first time or again."""
        made = self._attach(data, loaded, self.draw_functions(data, multi=loaded.multi), self.draw_failure(data))
        return multiple() if made is None else made

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=LINKS, data=st.data(), multi=st.booleans())
    @step
    def attach_failing_everywhere(self, data: st.DataObject, multi: bool) -> Any:
        """Every point of an attach fails, one after the other; each time everything is as before, and then it works."""
        loaded = self.load(self.draw_program(data, multi=multi), multi=multi, sleepable=False)
        names = self.draw_functions(data, multi=multi)
        made = None
        if self.may_change(names) and not self.reference.refusals(loaded.program, names, multi=multi):
            wanted = self.draw_cookies(data, loaded.program, names)
            link = self.fails_everywhere(data, self.attaching(loaded, names, wanted), names, most=40)
            made = self._linked(loaded, names, wanted, link)
        self.let_go(loaded)
        return multiple() if made is None else made

    def _attach(
        self, data: st.DataObject, loaded: LoadedProgram, names: tuple[str, ...], failure: Failure | None
    ) -> Linked | None:
        program, multi = loaded.program, loaded.multi
        if not self.may_change(names):
            return None
        wanted = self.draw_cookies(data, program, names)
        refusals = self.reference.refusals(program, names, multi=multi)
        made, link = self.all_or_nothing(self.attaching(loaded, names, wanted), refusals, failure, names=names)
        return self._linked(loaded, names, wanted, link) if made else None

    def _linked(self, loaded: LoadedProgram, names: tuple[str, ...], wanted: list[int], link: Any) -> Linked:
        linked = self.attached(loaded, names, wanted, link)
        self.compare_calls(names)
        return linked

    @rule(target=LINKS, data=st.data(), one=consumes(LINKS), fails=st.sampled_from(("", "", "once", "everywhere")))
    @step
    def detach(self, data: st.DataObject, one: Linked, fails: str) -> Any:
        """A link goes; where that fails, it stays, or goes at a later attempt."""
        if fails == "everywhere":
            self.fails_everywhere(data, partial(self._gone, one), one.names, most=40)
        elif fails:
            failure = self.draw_point(data)
            if not self.all_or_nothing(one.link.detach, failure=failure, names=one.names)[0]:
                return one
        else:
            self._gone(one)
        self.detached(one)
        self.compare_calls(one.names)
        return multiple()

    @staticmethod
    def _gone(one: Linked) -> None:
        if one.link.attached:
            one.link.detach()

    # Many -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=LINKS, data=st.data(), alike=st.booleans())
    @step
    def crowd(self, data: st.DataObject, alike: bool) -> Any:
        """A program comes to many functions: tables of functions grow, and shrink when it goes."""
        loaded = self.load(self.draw_program(data), multi=True, sleepable=False)
        failure = self.draw_failure(data)
        wanted = [7] * len(CROWD) if alike and "ip" in loaded.program.reads else self._numbered(loaded.program)
        refusals = self.reference.refusals(loaded.program, CROWD, multi=True)
        made, link = self.all_or_nothing(self.attaching(loaded, CROWD, wanted), refusals, failure, names=CROWD)
        linked = self._linked(loaded, CROWD, wanted, link) if made else None
        self.let_go(loaded)
        return multiple() if linked is None else linked

    def _numbered(self, program: ModelProgram) -> list[int]:
        self._own_cookies += len(CROWD)
        return [self._own_cookies - n << 16 | program.number for n in range(len(CROWD))]

    @precondition(lambda self: not self.filled)
    @rule(data=st.data(), rarely=st.sampled_from((*[False] * 9, True)))
    @step
    def fill(self, data: st.DataObject, rarely: bool) -> None:
        """A function takes programs of all kinds up to its limit, and not one more."""
        # So many programs as releases take cost time, and most of it only once for one function in one order.
        long = self.variant.max_links == 0
        name = INNER if long else self.draw_function(data)
        function = self.reference.functions[name]
        if (long and not rarely) or not self.may_change((name,)):
            return
        self.filled = True
        kinds = self.traits.kinds(self.release.trampoline)
        came: list[Linked] = []
        refused: set[AttachType] = set()
        number = 0
        before = [attached.multi for attached in function.attached]
        multi = any(before) if before else data.draw(st.booleans(), "multi")
        while len(refused) < len(kinds):
            number += 1
            kind = kinds[number % len(kinds)]
            self._programs += 1
            program = ModelProgram(self._programs, kind)
            loaded = self.load(program, multi=multi, sleepable=False)
            refusals = self.reference.refusals(program, (name,), multi=multi)
            attach = self.attaching(loaded, (name,), (number,))
            if refusals:
                self.all_or_nothing(attach, refusals)
                refused.add(kind)
            else:
                came.append(self.attached(loaded, (name,), (number,), attach()))
            self.let_go(loaded)
        self.compare_calls((name,))
        for linked in came:
            self.go(linked)
        self.compare_calls((name,))

    # What must be refused -------------------------------------------------------------------------------------------

    @rule(data=st.data())
    @step
    def denied(self, data: st.DataObject) -> None:
        """Functions that trampolines call themselves, and those that don't return, are refused."""
        kinds = self.traits.kinds(self.release.trampoline)
        there = sorted(name for name in self.release.btf_id_deny if name in self.lab.kernel.kallsyms)
        wrong = [(name, kind) for name in there for kind in kinds]
        if NO_RETURN in self.release.noreturn_deny:
            wrong += [(NO_RETURN, kind) for kind in kinds if kind is not AttachType.TRACE_FENTRY]
        if not wrong:
            return
        name, kind = data.draw(st.sampled_from(wrong), "function and kind")
        multi = data.draw(st.booleans(), "multi")
        prog = self.lab.prog(f"{kind}_multi" if multi else str(kind), lambda context: 0, name="denied")
        prototype = "void f(void)" if name != NO_RETURN else None

        def attach() -> Any:
            if multi:
                return self.lab.attach_multi(prog, [name])
            return self.lab.attach(prog, name, prototype=prototype)

        self.all_or_nothing(attach, frozenset({EINVAL}))
        self.lab.unload(prog)
