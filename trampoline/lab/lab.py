"""The laboratory: a synthetic kernel with trampolines on it, programs to attach, functions to call.

>>> with Lab("6.12") as lab:
...     prog = lab.prog("fentry", "xor eax, eax\\nret")
...     link = lab.attach(prog, "bpf_fentry_test1")
...     call = lab.call("bpf_fentry_test1", 41)
...     call.value
42
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from errno import EINVAL
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from emu.errors import GuestFault
from emu.kernel.config import CONFIGS, Config
from emu.kernel.kernel import Kernel
from emu.kernel.routines import kernel_routines
from emu.kernel.text.functions import AssemblyFunctions, FunctionSource
from emu.kernel.text.selftest_functions import NR_ARGS_FUNCTIONS, TEST_FUNCTIONS, TESTMOD_FUNCTIONS
from emu.kernel.text.stamped_text import TextSource
from emu.machine.address_map import PAGE_MASK, AddressMap
from emu.machine.vcpu import Call
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.btf.prototype_match import AttachFunc, btf_check_func_part_match
from trampoline.bpf.btf.writer import without_functions
from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.bpf.helpers.runtime.printing import TraceLine
from trampoline.bpf.helpers.runtime.runtime import Runtime
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.prog import BpfProg, BpfPrograms, ProgFunction, Uses
from trampoline.bpf.program import BpfProgram, LineInfo, MapSpec
from trampoline.bpf.structs import asm_symbols
from trampoline.bpf.uapi import ATTACH_WORDS, AttachType
from trampoline.callees import BPF_STATS_ENABLED_KEY, callees
from trampoline.designs import DesignChoice, design_info
from trampoline.lab.btf_functions import BtfFunctions, denied_names
from trampoline.lab.functions import KernelFunction, Population, is_glob, memory_of, populate
from trampoline.lab.links.link import no_progress
from trampoline.lab.links.tracing import TracingLink
from trampoline.lab.links.tracing_multi import Skipped, TracingMultiLink
from trampoline.lab.multi_request import check_cookie, check_multi, check_wanted
from trampoline.lab.prototypes import FuncProtos
from trampoline.phases import check_phases, with_phases
from trampoline.releases import release as release_named
from trampoline.releases.kernel_release import KernelRelease
from trampoline.update.multi import no_collections
from trampoline.update.target import TraceTarget

if TYPE_CHECKING:
    from trampoline.bpf.install.installer import Installer
    from trampoline.bpf.objects.bpf_object import BpfObject
    from trampoline.lab.loaded_object import LoadedObject
    from trampoline.lab.loader import Loader

MAX_MULTI = 1 << 20
"""Functions of one multi link at most (as many as a kprobe_multi link takes)."""
STACK_SEARCHED = 1024
"""Bytes of stack in which a caller is looked for after a fault."""
PROG_MODEL = FuncModel("bpf_prog", (FuncArg("ctx", "void *", 8),))
"""A BPF program as a target: ``int prog(void *ctx)``."""


class Lab:
    """A kernel of one release and configuration, with programs and trampolines.

    ``release``: the name of one, or a ``KernelRelease`` itself.
    ``functions`` are added to the kernel's text. With ``btf`` the kernel has every function of that BTF, with its type
    id and the prototype there, which comes before any other. ``design``: one of ``DESIGNS``, a DesignInfo, or what
    makes one; ``metadata``: one of its back ends (``DesignInfo.metadata``). Raises TrampolineError for an unknown
    release, configuration, design or back end.
    """

    def __init__(
        self,
        release: str | KernelRelease = "6.12",
        config: str | Config = "voluntary",
        *,
        boot: Boot | None = None,
        vcpus: int = 1,
        layout: AddressMap | None = None,
        functions: Sequence[FunctionSource | TextSource] = (),
        btf: Btf | None = None,
        counting: str = "auto",
        design: DesignChoice = "per-function",
        metadata: str | None = None,
    ) -> None:
        self.release = release_named(release) if isinstance(release, str) else release
        chosen = design_info(design)
        if metadata is not None and chosen.metadata is not None and metadata not in chosen.metadata:
            choices = ", ".join(chosen.metadata) or "none"
            raise TrampolineError(f"no metadata {metadata!r} for {chosen.name}; there is {choices}")
        if isinstance(config, str):
            if config not in CONFIGS:
                raise TrampolineError(f"no configuration {config!r}; there are {', '.join(CONFIGS)}")
            config = CONFIGS[config]
        routines = with_phases({**kernel_routines(config), **callees(config)})
        known = None if btf is None else BtfFunctions(btf)
        self.btf = btf
        self.kernel = Kernel(
            entry=self.release.entry,
            config=config,
            layout=layout or AddressMap(),
            vcpus=vcpus,
            counting=counting,
            packs=self.release.trampoline.packs_images,
            routines=routines,
            constants=asm_symbols(),
            functions=(AssemblyFunctions(TEST_FUNCTIONS + NR_ARGS_FUNCTIONS), *functions, *populate(known, routines)),
            **memory_of(known),
        )
        self.boot = boot or Boot()
        self.population = Population(self.kernel, self.release, known)
        self.protos = FuncProtos(self.kernel, known)
        self.programs = BpfPrograms(self.kernel)
        self.programs.model_at = self._model_at
        self.design = chosen.make(self.kernel, self.release.trampoline, self.boot, self.programs, metadata)
        self.trampolines = self.design.trampolines
        self._denied = {kind: denied_names(self.release, kind) for kind in ATTACH_WORDS.values()}
        self._models: dict[str, FuncModel] = {}
        self._unnamed = 0

    # Programs -------------------------------------------------------------------------------------------------------

    def prog(
        self,
        attach_type: str | AttachType,
        code: str | bytes | ProgFunction,
        *,
        name: str = "",
        sleepable: bool = False,
        uses: Uses | None = None,
        attach_func: str | int | KernelFunction | None = None,
        accessed_args: Collection[int] = (),
        accesses_ret: bool = False,
    ) -> BpfProg:
        """Load a program: assembly text, machine code, or a Python function that takes a ProgContext.

        ``attach_type``: one of ``ATTACH_WORDS`` (``"fexit"``), by its word or itself.
        ``uses``: what it reads beside its arguments; without it, code is taken not to ask for the function's address,
        and a Python function to ask for everything. A multi program may say what function it is made for, and which of
        its arguments, from 0, and whether its return value it reads: only those are compared on other functions.
        Raises TrampolineError for an unknown attach type, asm.AsmError, KernelError: -ENOMEM; for ``attach_func`` what
        ``target`` raises, -EINVAL where it has no such argument or is not to be traced by such a program.
        """
        attach = ATTACH_WORDS.get(str(attach_type))
        if attach is None:
            raise TrampolineError(f"no attach type {attach_type!r}; there are {', '.join(ATTACH_WORDS)}")
        loaded_for = self.loaded_for(attach, attach_func, accessed_args, accesses_ret)
        if not name:
            self._unnamed += 1
            name = f"prog{self._unnamed}"
        if callable(code):
            prog = self.programs.load_callable(
                name, attach, code, sleepable=sleepable, uses=uses or Uses(func_ip=True)
            )
        elif isinstance(code, bytes):
            prog = self.programs.load_image(name, attach, code, sleepable=sleepable, uses=uses or Uses())
        else:
            check_phases(code, name)
            prog = self.programs.load_assembly(name, attach, code, sleepable=sleepable, uses=uses or Uses())
        prog.attach_func = loaded_for
        return prog

    def loaded_for(
        self, attach: AttachType, where: str | int | KernelFunction | None, args: Collection[int], ret: bool
    ) -> AttachFunc | None:
        """What a multi program is compared with on other functions: the one it is made for and what it reads there.

        KernelError -EINVAL where it must not be on that function, what ``target`` raises.
        """
        if where is None:
            if args or ret:
                raise TrampolineError("what a program reads is compared with a function: which one?")
            return None
        if not attach.is_multi:
            raise TrampolineError(f"{attach} programs are on the function that they are attached to, and no other")
        if ret and attach is AttachType.TRACE_FENTRY_MULTI:
            raise KernelError(EINVAL, "a function has not returned yet when fentry programs run")
        target = self.target(where)
        self._check_returns(attach, target)
        return AttachFunc.of(target.name, self.protos.of(target), args, ret=ret)

    def unload(self, prog: BpfProg) -> None:
        """Drop the reference that loading gave; links hold their own."""
        for found in prog.own_maps:
            found.close()
        prog.own_maps = ()
        self.programs.put(prog)
        self.kernel.rcu.settle()

    # What programs run on -------------------------------------------------------------------------------------------

    @cached_property
    def runtime(self) -> Runtime:
        """Helpers and maps, which come into the kernel when somebody asks for them first."""
        return Runtime(self.programs, self.kernel, self.release.maps)

    @cached_property
    def installer(self) -> "Installer":
        """What compiles programs into guest memory."""
        from trampoline.bpf.install.installer import Installer  # with what follows: most kernels have no real program

        return Installer(self.runtime, self.release.jit, self.release.tag_hash, self.boot)

    @cached_property
    def loader(self) -> "Loader":
        """What puts real programs into the kernel. Without a BTF the types are those that functions declare."""
        from trampoline.lab.loader import Loader

        return Loader(self, without_functions() if self.btf is None else self.btf)

    def load(self, program: BpfProgram, maps: Mapping[str, BpfMap] | None = None) -> BpfProg:
        """Load a real program: ``Loader.load``."""
        return self.loader.load(program, maps)

    def open(self, obj: "BpfObject", **options: Any) -> "LoadedObject":
        """Load the programs and maps of a compiled object: ``Loader.open``."""
        return self.loader.open(obj, **options)

    def source_of(self, fault: GuestFault) -> LineInfo | None:
        """The line of a program's source in which the guest faulted, or from which what faulted was called; None
        where the program has no lines, or none is to blame.
        """
        words = [fault.rip, *self._stack_of(fault)]
        installed = list(self.installer.installed.values())
        found = (one.source_of(address) for address in words for one in installed)
        return next((line for line in found if line is not None), None)

    def _stack_of(self, fault: GuestFault) -> list[int]:
        """What the words on the stack would return to: the last bytes of calls."""
        machine, top = self.kernel.machine, fault.registers["rsp"]
        addresses = range(top, min(top + STACK_SEARCHED, (top | PAGE_MASK) + 1) - 7, 8)
        return [machine.read_u64(address) - 1 for address in addresses if machine.is_mapped(address)]

    @property
    def maps(self) -> dict[str, BpfMap]:
        """The maps that exist, by name; of several of one name the last made."""
        return {found.name: found for found in self.runtime.maps}

    def map(self, spec: MapSpec, btf: Btf | None = None) -> BpfMap:
        """Make a map; ``btf`` has the types of its keys and values. What ``Maps.create`` raises."""
        return self.runtime.maps.create(spec, btf)

    @property
    def trace(self) -> list[TraceLine]:
        """What programs printed (bpf_trace_printk), the oldest line first."""
        return self.runtime.trace

    # Links ----------------------------------------------------------------------------------------------------------

    def target(self, where: str | int | KernelFunction | BpfProg, prototype: str | None = None) -> TraceTarget:
        """What ``where`` names: a kernel function by name, ``module:function``, address or BTF id, or a BPF program.

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
        function = where if isinstance(where, KernelFunction) else self.population.find(where)
        if function.name in self._denied[AttachType.TRACE_FENTRY]:
            raise KernelError(EINVAL, f"{function.name} must not be traced")
        sizes = None if prototype is not None or function.module else self.population.arg_sizes(function.btf_id)
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

    def _model_at(self, caller: int, ip: int) -> FuncModel | None:
        trampoline = self.trampolines.at(caller)
        if trampoline is not None:
            return trampoline.target.model
        function = self.kernel.function_at(ip) if ip else None
        return self._known_model(self.population.row(function)) if function else None

    def _known_model(self, function: KernelFunction) -> FuncModel | None:
        model = None if function.module else self.population.model(function.btf_id)
        if model is not None:
            return model
        name = function.qualified
        if name not in self._models:
            placed = self.kernel.function_at(function.address)
            if placed is None or not placed.prototype:
                return None
            self._models[name] = parse_model(placed.prototype)
        return self._models[name]

    def _check_returns(self, attach: AttachType, target: TraceTarget) -> None:
        if target.name in self._denied[attach]:
            raise KernelError(EINVAL, f"{target.name} does not return: {attach} must not be on it")

    def attach(
        self,
        prog: BpfProg,
        where: str | int | KernelFunction | BpfProg,
        *,
        cookie: int = 0,
        prototype: str | None = None,
    ) -> TracingLink:
        """Attach a program (``bpf_tracing_prog_attach``). On any error nothing is attached and no text is patched.

        KernelError: -EBUSY where it is attached already, -E2BIG beyond the limit, -ENOTSUPP for too many argument
        slots, -EINVAL for a multi program, -EINVAL and -ENOENT as ``target`` says, -ERANGE where the image can't be
        reached. TrampolineError for a cookie that is no unsigned 64-bit number.
        """
        if prog.attach_type.is_multi:
            raise KernelError(EINVAL, f"{prog.name} ({prog.attach_type}) is attached by a multi link")
        check_cookie(cookie)
        target = self.target(where, prototype)
        self._check_returns(prog.attach_type, target)
        link = TracingLink(self, prog, target, cookie)
        link.attach()
        return link

    def attach_multi(
        self,
        prog: BpfProg,
        functions: Sequence[str | int | KernelFunction],
        *,
        cookies: Sequence[int] | None = None,
        skip_invalid: bool = False,
        progress: Callable[[], object] | None = None,
    ) -> TracingMultiLink:
        """Attach a program to many functions: to all of them, or, on any error, to none.

        ``functions``: names, addresses, BTF ids, and, where there are no cookies, globs. With ``skip_invalid`` what
        can't be traced is left out and reported. Each function may have a cookie of its own. ``progress`` is called
        once for each function. KernelError: -EINVAL for no function, one given twice, cookies that don't match, a
        program that is no ``_multi`` one, a function on which it would read something else than where it was loaded
        for; -E2BIG for too many; what ``check_wanted`` and, for one function, ``attach`` raise.
        """
        with no_collections():
            return self._attach_multi(prog, functions, cookies, skip_invalid, progress or no_progress)

    def _attach_multi(
        self,
        prog: BpfProg,
        functions: Sequence[str | int | KernelFunction],
        cookies: Sequence[int] | None,
        skip_invalid: bool,
        progress: Callable[[], object],
    ) -> TracingMultiLink:
        check_wanted(functions, cookies)
        if not prog.attach_type.is_multi:
            raise KernelError(EINVAL, f"{prog.name} ({prog.attach_type}) can't be on many functions")
        if cookies is None:
            functions = self._expanded(functions)
        check_multi(len(functions), None if cookies is None else len(cookies), most=MAX_MULTI)
        targets: list[tuple[TraceTarget, int]] = []
        skipped: list[Skipped] = []
        for where, cookie in zip(functions, cookies or [0] * len(functions), strict=True):
            try:
                target = self.target(where)
                self._check_returns(prog.attach_type, target)
                self.design.check(target, prog)
                if target.site_offset is None:
                    raise KernelError(EINVAL, f"{target.name} has no patch site")
                if prog.attach_func:
                    btf_check_func_part_match(prog.attach_func, target.name, self.protos.of(target))
                targets.append((target, cookie))
            except (KernelError, PrototypeError) as error:
                if not skip_invalid:
                    raise
                skipped.append(Skipped(where.qualified if isinstance(where, KernelFunction) else str(where), error))
        link = TracingMultiLink(self, prog, targets, skipped)
        link.attach(progress)
        return link

    def _expanded(self, functions: Sequence[str | int | KernelFunction]) -> list[str | int | KernelFunction]:
        """Globs replaced by the functions that they match and that are not there already."""
        if not any(isinstance(where, str) and is_glob(where) for where in functions):
            return list(functions)
        found: list[str | int | KernelFunction] = []
        there: set[int] = set()
        for where in functions:
            if isinstance(where, str) and is_glob(where):
                rows = [row for row in self.population.select([where]) if row.address not in there]
                there.update(row.address for row in rows)
                found += rows
                continue
            found.append(where)
            # What is not found is refused, or skipped, where its turn comes.
            with suppress(KernelError):
                there.add((where if isinstance(where, KernelFunction) else self.population.find(where)).address)
        return found

    # Running --------------------------------------------------------------------------------------------------------

    def call(
        self, function: str | int, *args: int, stack_args: Iterable[int] = (), cpu: int = 0, **options: Any
    ) -> Call:
        """Call a kernel function with register and stack arguments; its value and what it cost."""
        return self.kernel.call(function, *args, stack_args=stack_args, cpu=cpu, **options)

    def load_testmod(self) -> None:
        """Load bpf_testmod: functions with many arguments and with structs by value."""
        self.kernel.load_module("bpf_testmod", AssemblyFunctions(TESTMOD_FUNCTIONS, module="bpf_testmod"))

    def stats(self, *, enabled: bool) -> None:
        """Run-time statistics of programs (``kernel.bpf_stats_enabled``)."""
        self.design.time_programs(enabled)
        self.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=enabled)
        self.kernel.rcu.settle()

    def close(self) -> None:
        """Give the machine back."""
        self.kernel.close()

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
