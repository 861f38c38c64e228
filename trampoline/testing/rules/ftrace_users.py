"""Other users of functions: tracers of some or of all functions, livepatch, other direct callers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EBUSY, EINVAL
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from trampoline.testing.instrumented_lab import DIRECT_CALLERS
from trampoline.testing.reference_model import Reference
from trampoline.testing.rules.base import LabSteps, step

MOST_TRACERS = 4
_MOST_FUNCTIONS = 3
_MOST_POINTS = 30
_TRACER_FLAGS = (
    FtraceOpsFlag(0),
    FtraceOpsFlag.SAVE_REGS,
    FtraceOpsFlag.DYNAMIC | FtraceOpsFlag.RECURSION,
)


@dataclass(frozen=True, slots=True)
class Visitor:
    """User of a function that registers (``come``) and unregisters (``go``); ``tell`` updates the model."""

    come: Callable[[], Any]
    go: Callable[[], Any]
    tell: Callable[[Reference, bool], None]


class UserSteps(LabSteps):
    """Steps of other users."""

    def new_tracer(
        self, names: Sequence[str], flags: FtraceOpsFlag = FtraceOpsFlag(0)  # noqa: B008
    ) -> tuple[int, FtraceOps]:
        """New tracer of the named functions, or of all if none are named, with its number; not yet registered."""
        self.tracers_made += 1
        return self.tracers_made, self.watched.tracer(self.tracers_made, names, flags)

    def visitor(self, name: str, *, livepatch: bool) -> "Visitor":
        """Livepatch or tracer of a function; not yet registered."""
        watched = self.watched
        if livepatch:
            return Visitor(
                partial(watched.patch, name),
                partial(watched.unpatch, name),
                lambda one, on: one.patch(name, on=on),
            )
        ftrace = self.lab.kernel.ftrace
        number, ops = self.new_tracer((name,))
        return Visitor(
            partial(ftrace.register_ftrace_function, ops),
            partial(ftrace.unregister_ftrace_function, ops),
            lambda one, on: one.trace(number, (name,) if on else ()),
        )

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data(), flags=st.sampled_from(_TRACER_FLAGS), goes=st.booleans())
    @step
    def tracer(self, data: st.DataObject, flags: FtraceOpsFlag, goes: bool) -> None:
        """Registers a tracer of one function, of several or of all, used by others or not; or unregisters one."""
        ftrace, failure = self.lab.kernel.ftrace, self.draw_failure(data)
        if self.tracers and (goes or len(self.tracers) == MOST_TRACERS):
            number = data.draw(st.sampled_from(list(self.tracers)), "which")
            names = self._traced_by(number)
            if self.or_again(data, partial(ftrace.unregister_ftrace_function, self.tracers[number]), failure=failure):
                del self.tracers[number]
                self.reference.trace(number, ())
        else:
            of_all = data.draw(st.sampled_from((*[False] * 7, True)), "of all")
            some: list[str] = []
            if not of_all:
                lists = st.lists(st.sampled_from(self.likely), min_size=1, max_size=_MOST_FUNCTIONS)
                some = sorted(set(data.draw(lists, "functions")))
            number, ops = self.new_tracer(some, flags)
            names = some or list(self.reference.functions)
            if self.or_again(data, partial(ftrace.register_ftrace_function, ops), failure=failure, names=names):
                self.tracers[number] = ops
                self.reference.trace(number, names)
        self.compare_calls(names[:_MOST_FUNCTIONS])

    def _traced_by(self, number: int) -> list[str]:
        return [name for name, function in self.reference.functions.items() if number in function.tracers]

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data(), everywhere=st.sampled_from((False, False, True)))
    @step
    def livepatch(self, data: st.DataObject, everywhere: bool) -> None:
        """Livepatches a function, or disables its livepatch."""
        name = self.draw_function(data)
        function = self.reference.functions[name]
        if not self.may_change((name,)):
            return
        on = not function.patched
        refusals = frozenset({EBUSY}) if on and function.direct is not None else frozenset[int]()
        change = partial(self.watched.patch if on else self.watched.unpatch, name)
        # Disabling a livepatch gives sites back to direct callers as far as memory allows. A failed enable may have
        # rebuilt images twice.
        may_fail = on and not self.sleepers
        if everywhere and may_fail and not refusals:
            self.fails_everywhere(data, change, (name,), _MOST_POINTS, remakes=True)
            made = True
        else:
            failure = self.draw_failure(data) if may_fail else None
            made = self.or_again(data, change, refusals, failure, names=(name,), remakes=True)
        if made:
            self.reference.patch(name, on=on)
        self.compare_calls((name,))

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data(), caller=st.integers(0, len(DIRECT_CALLERS) - 1), everywhere=st.booleans())
    @step
    def direct_caller(self, data: st.DataObject, caller: int, everywhere: bool) -> None:
        """Registers, modifies or unregisters a direct caller of one or more functions that is no trampoline."""
        name = self.draw_function(data)
        function = self.reference.functions[name]
        names: Sequence[str] = (name,)
        refusals = set[int]()
        becomes: int | None = caller
        if function.direct is None:
            more = data.draw(st.lists(st.sampled_from(self.likely), max_size=_MOST_FUNCTIONS - 1), "more")
            names = sorted({name, *more})
            ops = self.watched.direct_ops(names)
            change = partial(self.watched.direct, ops, caller)
            there = [self.reference.functions[name] for name in names]
            if any(one.attached or one.patched or one.direct is not None for one in there):
                refusals.add(EBUSY)
        else:
            ops = self.directs[name]
            names = [other for other, one in self.directs.items() if one is ops]
            if function.direct == caller:
                change, becomes = partial(self.watched.undirect, ops, caller), None
            else:
                self.all_or_nothing(partial(self.watched.undirect, ops, caller), frozenset({EINVAL}))
                change = partial(self.watched.redirect, ops, caller)
        if everywhere and not refusals:
            self.fails_everywhere(data, change, names, _MOST_POINTS)
        elif not self.or_again(data, change, frozenset(refusals), self.draw_failure(data), names=names):
            return
        self.reference.direct(names, becomes)
        for name in names:
            if becomes is None:
                del self.directs[name]
            else:
                self.directs[name] = ops
        self.compare_calls(names)
