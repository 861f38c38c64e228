"""BPF programs as the trampoline sees them: machine code and a struct bpf_prog in guest memory.

A program's code is assembly text, a recorded image, or a Python callable reached by a host call, which gets a
``ProgContext``.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from asm import assemble
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.kernel.structs import task_struct
from emu.kernel.text.kallsyms import Symbol
from emu.machine.vcpu import Vcpu
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.btf.prototype_match import AttachFunc
from trampoline.bpf.ctx_words import COUNT_MASK
from trampoline.bpf.prog_uses import NOTHING as NOTHING
from trampoline.bpf.prog_uses import Uses as Uses
from trampoline.bpf.structs import SLEEPABLE, bpf_prog, bpf_prog_aux, bpf_prog_stats, bpf_tramp_run_ctx
from trampoline.bpf.uapi import AttachType


class OwnedMap(Protocol):
    """A map that was created with a program."""

    def close(self) -> None:
        """Drop user space's reference."""
        ...


@dataclass(frozen=True, slots=True)
class TailOwner:
    """Common properties of the programs of a program array (``struct bpf_map_owner``)."""

    prog_type: int
    attach_proto: int = 0
    """BTF id of the prototype of the target function (``attach_func_proto``)."""


@dataclass(eq=False, slots=True)
class BpfProg:
    """A loaded program. Addresses are guest addresses."""

    name: str
    attach_type: AttachType
    sleepable: bool
    uses: Uses
    address: int
    bpf_func: int
    size: int
    active: int
    stats: int
    tail_call_reachable: bool = False
    """Tail calls can reach the program, so a trampoline must pass their counter on."""
    refs: int = 1
    has_image: bool = True
    accesses_ret: bool = False
    """The program reads the return value: the context slot after the last argument of its load-time target."""
    attach_func: AttachFunc | None = None
    """The load-time target, if known (``aux->attach_btf_id``, ``attach_func_proto``)."""
    symbol: Symbol | None = None
    tail_owner: TailOwner | None = None
    """Program arrays that may contain the program; None if it cannot be tail-called."""
    own_maps: tuple[OwnedMap, ...] = ()
    """Maps created with the program and released when it is unloaded."""
    release: Callable[[], None] | None = None
    """Releases what the program holds besides its structures: maps, and images that it does not own itself."""

    def __repr__(self) -> str:
        return f"<BpfProg {self.name} ({self.attach_type}) at {self.bpf_func:#x}>"


@dataclass(frozen=True, slots=True)
class ProgContext:
    """A running program's context, read from guest memory. Addresses and values belong to the current call.

    ``model``: the traced function's prototype; None if the caller is not a trampoline in use.
    """

    vcpu: Vcpu
    address: int
    """Guest address of the context: argument slot 0."""
    model: FuncModel | None
    kernel: Kernel

    @property
    def count(self) -> int:
        """``bpf_get_func_arg_cnt``: argument slots."""
        return self.kernel.machine.read_u64(self.address - 8) & COUNT_MASK

    @property
    def slots(self) -> tuple[int, ...]:
        """The argument slots as 64-bit numbers; the upper bits of smaller arguments are as the caller left them."""
        return tuple(self.kernel.machine.read_u64(self.address + 8 * i) for i in range(self.count))

    @property
    def args(self) -> tuple[int | bytes, ...]:
        """The C arguments, each truncated to its size and sign-extended; a struct by value as its bytes."""
        if self.model is None:
            return self.slots
        args: list[int | bytes] = []
        at = self.address
        for arg in self.model.args:
            raw = self.kernel.machine.read(at, arg.size)
            args.append(raw if arg.is_struct else int.from_bytes(raw, "little", signed=arg.signed))
            at += 8 * arg.slots
        return tuple(args)

    @property
    def ret(self) -> int:
        """``bpf_get_func_ret``: the return value, with the prototype's size and sign; for fexit and fmod_ret."""
        size, signed = (self.model.ret_size or 8, self.model.ret_signed) if self.model else (8, False)
        return int.from_bytes(self.kernel.machine.read(self.address + 8 * self.count, size), "little", signed=signed)

    @property
    def ip(self) -> int:
        """``bpf_get_func_ip``: the traced function's address; requires a program loaded with ``Uses.func_ip``."""
        return self.kernel.machine.read_u64(self.address - 16)

    @property
    def cookie(self) -> int:
        """``bpf_get_attach_cookie``: read from ``current->bpf_ctx``."""
        current = self.kernel.current(self.vcpu)
        run_ctx = task_struct.view(self.kernel.machine, current).bpf_ctx
        return int(bpf_tramp_run_ctx.view(self.kernel.machine, run_ctx).bpf_cookie)


ProgFunction = Callable[[ProgContext], int | None]


class BpfPrograms:
    """Loads and frees the programs of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.loaded: dict[int, BpfProg] = {}
        """Loaded programs, by address of their struct bpf_prog."""
        self.model_at: Callable[[int, int], FuncModel | None] = lambda caller, ip: None
        """Prototype of the function whose trampoline contains an address; for a shared trampoline, of the function at
        ``ip``.
        """

    def load_assembly(
        self,
        name: str,
        attach_type: AttachType,
        text: str,
        *,
        sleepable: bool = False,
        uses: Uses = Uses(),  # noqa: B008  # frozen
    ) -> BpfProg:
        """Load a program from x86 assembly: context in rdi, result in rax; it must preserve rbx, rbp, r12 to r15.

        Raises asm.AsmError for text that cannot be assembled, KernelError with -ENOMEM; nothing stays allocated then.
        """
        symbols = self._kernel.symbols
        size = len(assemble(text, self._kernel.layout.modules, symbols, name=name))
        address = self._kernel.execmem.alloc(size, f"bpf_prog {name}")
        try:
            image = assemble(text, address, symbols, name=name)
            self._kernel.execmem.fill(image)
            return self._add(name, attach_type, address, size, sleepable=sleepable, uses=uses)
        except BaseException:
            self._kernel.execmem.free(address)
            raise

    def load_image(
        self,
        name: str,
        attach_type: AttachType,
        code: bytes,
        *,
        address: int | None = None,
        sleepable: bool = False,
        uses: Uses = Uses(),  # noqa: B008  # frozen
    ) -> BpfProg:
        """Load a program from finished machine code, such as a recorded JIT image; ``address`` fixes its guest address.
        """
        where = self._kernel.execmem.alloc(len(code), f"bpf_prog {name}", at=address)
        try:
            self._kernel.execmem.write(where, code)
            return self._add(name, attach_type, where, len(code), sleepable=sleepable, uses=uses)
        except BaseException:
            self._kernel.execmem.free(where)
            raise

    def load_callable(
        self,
        name: str,
        attach_type: AttachType,
        function: ProgFunction,
        *,
        sleepable: bool = False,
        uses: Uses = Uses(func_ip=True),  # noqa: B008  # frozen
    ) -> BpfProg:
        """Load a Python function as a program: it gets a ProgContext and returns the result; None counts as 0."""
        machine = self._kernel.machine

        def run(vcpu: Vcpu) -> int:
            caller = machine.read_u64(vcpu.regs.rsp)
            context = vcpu.args(1)[0]
            ip = machine.read_u64(context - 16) if uses.func_ip else 0
            result = function(ProgContext(vcpu, context, self.model_at(caller, ip), self._kernel))
            return (result or 0) & (1 << 64) - 1

        address = machine.host_call(f"bpf_prog {name}", run)
        try:
            prog = self._add(name, attach_type, address, 0, sleepable=sleepable, uses=uses)
        except BaseException:
            machine.remove_host_call(address)
            raise
        prog.has_image = False
        return prog

    def adopt(
        self,
        name: str,
        attach_type: AttachType,
        bpf_func: int,
        size: int,
        release: Callable[[], None],
        *,
        symbol: str,
        sleepable: bool,
        uses: Uses,
    ) -> BpfProg:
        """Register a program whose images are already in executable memory; ``release`` frees them. KernelError
        -ENOMEM.
        """
        prog = self._add(name, attach_type, bpf_func, size, sleepable=sleepable, uses=uses, symbol=symbol)
        prog.release = release
        return prog

    def get(self, prog: BpfProg) -> None:
        """``bpf_prog_inc``."""
        prog.refs += 1

    def put(self, prog: BpfProg) -> None:
        """``bpf_prog_put``: the last reference frees the program once no CPU can be running it."""
        prog.refs -= 1
        if prog.refs == 0:
            rcu = self._kernel.rcu
            if prog.sleepable:
                # bpf_prog_put_deferred(): waits for both kinds of reader.
                rcu.call(RcuFlavour.RCU_TASKS_TRACE, lambda: rcu.call(RcuFlavour.RCU, lambda: self._free(prog)))
            else:
                rcu.call(RcuFlavour.RCU, lambda: self._free(prog))

    def misses(self, prog: BpfProg) -> int:
        """Runs that the recursion guard refused, summed over all CPUs."""
        return self._sum(prog, "misses")

    def runs(self, prog: BpfProg) -> int:
        """Runs counted while statistics were on, summed over all CPUs."""
        return self._sum(prog, "cnt")

    def time(self, prog: BpfProg) -> int:
        """Nanoseconds of the counted runs, summed over all CPUs."""
        return self._sum(prog, "nsecs")

    def _sum(self, prog: BpfProg, field: str) -> int:
        return sum(self._kernel.percpu.values(prog.stats + bpf_prog_stats.offset(field)))

    def _add(
        self,
        name: str,
        attach_type: AttachType,
        bpf_func: int,
        size: int,
        *,
        sleepable: bool,
        uses: Uses,
        symbol: str = "",
    ) -> BpfProg:
        kernel = self._kernel
        with ExitStack() as undo:
            active = kernel.percpu.alloc(4, f"active of {name}")
            undo.callback(kernel.percpu.free, active)
            stats = kernel.percpu.alloc(bpf_prog_stats.size, f"bpf_prog_stats of {name}")
            undo.callback(kernel.percpu.free, stats)
            aux = kernel.slab.alloc(bpf_prog_aux.size, f"bpf_prog_aux of {name}")
            undo.callback(kernel.slab.free, aux)
            address = kernel.vmalloc.alloc(bpf_prog.size, f"bpf_prog {name}")
            undo.pop_all()
        view = bpf_prog.view(kernel.machine, address)
        view.active, view.stats, view.aux, view.bpf_func, view.jited_len = active, stats, aux, bpf_func, size
        view.bpf_func_7_2 = bpf_func
        view.jited, view.sleepable = 1, SLEEPABLE if sleepable else 0
        loaded = BpfProg(name, attach_type, sleepable, uses, address, bpf_func, size, active, stats)
        self.loaded[address] = loaded
        loaded.symbol = kernel.kallsyms.add(symbol or f"bpf_prog_{name}", bpf_func, size)
        return loaded

    def _free(self, prog: BpfProg) -> None:
        kernel = self._kernel
        if prog.symbol:
            kernel.kallsyms.remove(prog.symbol)
        del self.loaded[prog.address]
        kernel.percpu.free(prog.active)
        kernel.percpu.free(prog.stats)
        kernel.slab.free(bpf_prog.view(kernel.machine, prog.address).aux)
        kernel.vmalloc.free(prog.address)
        if prog.release is not None:
            prog.release()
        elif prog.has_image:
            kernel.execmem.free(prog.bpf_func)
        else:
            kernel.machine.remove_host_call(prog.bpf_func)
