"""The laboratory: a synthetic kernel with trampolines on it, programs to attach, functions to call.

>>> with Lab("6.12") as lab:
...     prog = lab.prog("fentry", "xor eax, eax\\nret")
...     link = lab.attach(prog, "bpf_fentry_test1")
...     call = lab.call("bpf_fentry_test1", 41)
...     call.value
42
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from errno import EINVAL
from functools import cached_property
from typing import TYPE_CHECKING, Any

from emu.kernel.config import CONFIGS, Config
from emu.kernel.kernel import Kernel
from emu.kernel.routines import kernel_routines
from emu.kernel.text.functions import AssemblyFunctions, FunctionSource
from emu.kernel.text.selftest_functions import NR_ARGS_FUNCTIONS, TEST_FUNCTIONS, TESTMOD_FUNCTIONS
from emu.kernel.text.stamped_text import TextSource
from emu.machine.address_map import AddressMap
from emu.machine.vcpu import Call
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.btf.writer import without_functions
from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.bpf.helpers.runtime.printing import TraceLine
from trampoline.bpf.helpers.runtime.runtime import Runtime
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.prog import BpfProg, BpfPrograms, ProgFunction, Uses
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.structs import asm_symbols
from trampoline.bpf.uapi import ATTACH_WORDS, AttachType
from trampoline.callees import BPF_STATS_ENABLED_KEY, callees
from trampoline.designs import DesignChoice, design_info
from trampoline.lab.btf_functions import BtfFunctions
from trampoline.lab.functions import KernelFunction, Population, memory_of, populate
from trampoline.lab.links.link import no_progress
from trampoline.lab.links.tracing import TracingLink
from trampoline.lab.links.tracing_multi import Skipped, TracingMultiLink
from trampoline.lab.multi_request import check_cookie, check_multi, check_wanted
from trampoline.lab.targets import Targets
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
        self.targets = Targets(self.kernel, self.release, self.population, known)
        self.programs = BpfPrograms(self.kernel)
        self.programs.model_at = self._model_at
        self.design = chosen.make(self.kernel, self.release.trampoline, self.boot, self.programs, metadata)
        self.trampolines = self.design.trampolines
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
        loaded_for = self.targets.attach_func(attach, attach_func, accessed_args, accesses_ret)
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
        """A kernel function or BPF program as what programs attach to: ``Targets.find``."""
        return self.targets.find(where, prototype)

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
        self.targets.check_returns(prog.attach_type, target)
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
            functions = self.targets.expanded(functions)
        check_multi(len(functions), None if cookies is None else len(cookies), most=MAX_MULTI)
        targets: list[tuple[TraceTarget, int]] = []
        skipped: list[Skipped] = []
        for where, cookie in zip(functions, cookies or [0] * len(functions), strict=True):
            try:
                target = self.target(where)
                self.targets.check_returns(prog.attach_type, target)
                self.design.check(target, prog)
                if target.site_offset is None:
                    raise KernelError(EINVAL, f"{target.name} has no patch site")
                self.targets.check_match(prog, target)
                targets.append((target, cookie))
            except (KernelError, PrototypeError) as error:
                if not skip_invalid:
                    raise
                skipped.append(Skipped(where.qualified if isinstance(where, KernelFunction) else str(where), error))
        link = TracingMultiLink(self, prog, targets, skipped)
        link.attach(progress)
        return link

    def _model_at(self, caller: int, ip: int) -> FuncModel | None:
        trampoline = self.trampolines.at(caller)
        return self.targets.model_at(ip) if trampoline is None else trampoline.target.model

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
