"""Targets: what users name, as what programs attach to; deny lists, and prototypes that programs are compared with."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from errno import EINVAL
from functools import partial

from emu.kernel.kernel import Kernel
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.btf.prototype_match import AttachFunc, btf_check_func_part_match
from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.bpf.prog import BpfProg
from trampoline.bpf.uapi import ATTACH_WORDS, AttachType
from trampoline.lab.btf_functions import BtfFunctions, denied_names
from trampoline.lab.functions import KernelFunction, Population, is_glob
from trampoline.lab.prototypes import FuncProtos
from trampoline.releases.kernel_release import KernelRelease
from trampoline.update.target import TraceTarget

PROG_MODEL = FuncModel("bpf_prog", (FuncArg("ctx", "void *", 8),))
"""A BPF program as a target: ``int prog(void *ctx)``."""


class Targets:
    """The targets of one kernel. ``functions`` are those of its BTF, None where it has none."""

    def __init__(
        self, kernel: Kernel, release: KernelRelease, population: Population, functions: BtfFunctions | None
    ) -> None:
        self._kernel, self._population = kernel, population
        self._protos = FuncProtos(kernel, functions)
        self._denied = {kind: denied_names(release, kind) for kind in ATTACH_WORDS.values()}
        self._models: dict[str, FuncModel] = {}

    def find(self, where: str | int | KernelFunction | BpfProg, prototype: str | None = None) -> TraceTarget:
        """Find a target: a kernel function by name, ``module:function``, address or BTF id, or a BPF program.

        KernelError -ENOENT for an unknown function, -EINVAL for one that must not be traced, and as its model in BTF
        is refused; PrototypeError where the prototype can't be read, contradicts the one that is known, or is missing.
        """
        if isinstance(where, BpfProg):
            return TraceTarget(
                where.name,
                where.bpf_func,
                PROG_MODEL,
                where.address,
                PROG_MODEL.arg_sizes,
                tail_call_reachable=where.tail_call_reachable,
            )
        function = where if isinstance(where, KernelFunction) else self._population.find(where)
        if function.name in self._denied[AttachType.TRACE_FENTRY]:
            raise KernelError(EINVAL, f"{function.name} must not be traced")
        sizes = None if prototype is not None or function.module else self._population.arg_sizes(function.btf_id)
        model: FuncModel | Callable[[], FuncModel] = partial(self._model, function, None)
        if sizes is None:
            model = self._model(function, prototype)
            sizes = model.arg_sizes
        return TraceTarget(
            where if isinstance(where, str) else function.qualified,
            function.address,
            model,
            function.key,
            sizes,
            function.module,
            function.site - function.address if function.site else None,
        )

    def _model(self, function: KernelFunction, given: str | None) -> FuncModel:
        known = self._known_model(function)
        if given is not None:
            model = parse_model(given)
            if known and model.args and model.arg_sizes != known.arg_sizes:
                raise PrototypeError(f"{function.qualified} is {known}, not {given!r}")
            return model
        if known is None:
            raise PrototypeError(f"no prototype of {function.qualified} is known; give one")
        return known

    def model_at(self, ip: int) -> FuncModel | None:
        """The model of the function that an address is in; None for another address, and where it is not known."""
        function = self._kernel.function_at(ip) if ip else None
        return self._known_model(self._population.row(function)) if function else None

    def _known_model(self, function: KernelFunction) -> FuncModel | None:
        model = None if function.module else self._population.model(function.btf_id)
        if model is not None:
            return model
        name = function.qualified
        if name not in self._models:
            placed = self._kernel.function_at(function.address)
            if placed is None or not placed.prototype:
                return None
            self._models[name] = parse_model(placed.prototype)
        return self._models[name]

    def check_returns(self, attach: AttachType, target: TraceTarget) -> None:
        """Raise KernelError -EINVAL for a function that never returns, and programs that run after it."""
        if target.name in self._denied[attach]:
            raise KernelError(EINVAL, f"{target.name} does not return: {attach} must not be on it")

    def attach_func(
        self, attach: AttachType, where: str | int | KernelFunction | None, args: Collection[int], ret: bool
    ) -> AttachFunc | None:
        """The function that a multi program is loaded for, and what it reads there: compared with other functions.

        KernelError -EINVAL where it must not be on that function, what ``find`` raises.
        """
        if where is None:
            if args or ret:
                raise TrampolineError("what a program reads is compared with a function: which one?")
            return None
        if not attach.is_multi:
            raise TrampolineError(f"{attach} programs are on the function that they are attached to, and no other")
        if ret and attach is AttachType.TRACE_FENTRY_MULTI:
            raise KernelError(EINVAL, "a function has not returned yet when fentry programs run")
        target = self.find(where)
        self.check_returns(attach, target)
        return AttachFunc.of(target.name, self._protos.of(target), args, ret=ret)

    def check_match(self, prog: BpfProg, target: TraceTarget) -> None:
        """Check a function against the one that a multi program was loaded for.

        KernelError -EINVAL where the program would read something else there; PrototypeError where none is known.
        """
        if prog.attach_func:
            btf_check_func_part_match(prog.attach_func, target.name, self._protos.of(target))

    def expanded(self, functions: Sequence[str | int | KernelFunction]) -> list[str | int | KernelFunction]:
        """Globs replaced by the functions that they match and that are not there already."""
        if not any(isinstance(where, str) and is_glob(where) for where in functions):
            return list(functions)
        found: list[str | int | KernelFunction] = []
        there: set[int] = set()
        for where in functions:
            if isinstance(where, str) and is_glob(where):
                rows = [row for row in self._population.select([where]) if row.address not in there]
                there.update(row.address for row in rows)
                found += rows
                continue
            found.append(where)
            # What is not found is refused, or skipped, by whoever attaches to it.
            with suppress(KernelError):
                there.add((where if isinstance(where, KernelFunction) else self._population.find(where)).address)
        return found
