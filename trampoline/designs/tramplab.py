"""The design ``tramplab``: callers made for their programs, shared by functions."""

from collections.abc import Hashable, Sequence

from asm import assemble
from asm.encodings import jmp_rel32
from emu.kernel.kallsyms import Symbol
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from trampoline.attach import Kind
from trampoline.bpf_trampoline import BpfTrampoline, SiteImage, Target, TrampLink
from trampoline.designs.caller import caller_text
from trampoline.designs.caller_spec import CallerProg, CallerSpec, Places
from trampoline.designs.records import Records, record
from trampoline.designs.shared_images import SharedImages, identities, ksym
from trampoline.designs.thunks import Thunks
from trampoline.flavour import Flavour
from trampoline.generator import PATCH_SIZE, Boot, TrampFlag, uses_jmp
from trampoline.kfunc_md import MetadataBackend
from trampoline.multi import MultiEntry
from trampoline.prog import BpfPrograms

KSYM = "tramplab_caller"
"""What callers' symbols begin with."""
LONGEST_INSTRUCTION = 15
_ALIGNED = 16


class CallerImage:
    """A caller in guest memory. It holds its programs, so that who is on the way to one finds it."""

    def __init__(
        self,
        kernel: Kernel,
        programs: BpfPrograms,
        spec: CallerSpec,
        boot: Boot,
        backend: MetadataBackend | None,
        name: str,
    ) -> None:
        """Allocate and write it: KernelError (-ENOMEM) at any step leaves nothing behind."""
        self._kernel, self._programs, self.spec = kernel, programs, spec
        self._refs = kernel.percpu.alloc(8, f"count of {name}") if spec.counted else 0
        try:
            text = caller_text(
                spec, kernel.config, boot, refs=self._refs, backend=backend, cookies=record.offset("cookies")
            )
            symbols = kernel.symbols | backend.symbols if backend else kernel.symbols
            self.image = kernel.execmem.alloc(LONGEST_INSTRUCTION * text.count("\n"), name)
            try:
                made = assemble(text, self.image, symbols, name=name)
                kernel.execmem.trim(self.image, len(made))
                kernel.execmem.fill(made)
            except BaseException:
                kernel.execmem.free(self.image)
                raise
        except BaseException:
            if self._refs:
                kernel.percpu.free(self._refs)
            raise
        self._symbol: Symbol = kernel.kallsyms.add(name, self.image, len(made))
        self._after_call, self._epilogue = (made.symbols.get(label, 0) for label in ("ip_after_call", "ip_epilogue"))
        self._held = [programs.loaded[prog.prog] for prog in dict.fromkeys(spec.progs)]
        for prog in self._held:
            programs.get(prog)

    def put(self) -> None:
        """Release it once no CPU and no task can be in it.

        1 Tasks that return from the original jump over the programs; 2 RCU-tasks for those in its first instructions,
        which aren't counted yet, or, where nothing in it sleeps, anywhere; 3 its count, for those that sleep;
        4 RCU-tasks for those in its last instructions.
        """
        rcu = self._kernel.rcu
        if not self.spec.counted:
            rcu.call(RcuFlavour.RCU_TASKS, self.discard)
            return
        if self._after_call:
            self._skip_programs()
        rcu.call(RcuFlavour.RCU_TASKS, lambda: rcu.call_srcu(self._refs, self._left))

    def _left(self) -> None:
        self._kernel.rcu.call(RcuFlavour.RCU_TASKS, self.discard)

    def _skip_programs(self) -> None:
        kernel = self._kernel
        with kernel.text_poke.text_mutex:
            kernel.text_poke.text_poke_bp(self._after_call, jmp_rel32(self._after_call, self._epilogue))

    def discard(self) -> None:
        """Free it now."""
        kernel = self._kernel
        kernel.kallsyms.remove(self._symbol)
        kernel.execmem.free(self.image)
        if self._refs:
            kernel.percpu.free(self._refs)
        for prog in self._held:
            self._programs.put(prog)


class ThunkedImage:
    """A caller as one function reaches it: by a jump, through a thunk of its own."""

    by_jmp = True

    def __init__(self, thunks: Thunks, trampoline: BpfTrampoline, caller: SiteImage, record: int) -> None:
        """``record``: the function's, 0 where the caller needs none. KernelError: the caller is still held."""
        self._thunks, self._caller = thunks, caller
        self.image = thunks.make(trampoline.target.address, trampoline.site + PATCH_SIZE, caller.image, record)

    def put(self) -> None:
        """See ``SiteImage``."""
        self._thunks.put(self.image)
        self._caller.put()

    def discard(self) -> None:
        """See ``SiteImage``."""
        self._thunks.discard((self.image,))
        self._caller.discard()


class TramplabImages(SharedImages):
    """Chooses a function's caller by its argument places and its programs, and makes it where there is none yet."""

    def __init__(self, kernel: Kernel, flavour: Flavour, programs: BpfPrograms, backend: MetadataBackend) -> None:
        super().__init__(kernel, flavour)
        self._programs = programs
        self.records = Records(kernel, backend)
        self._thunks = Thunks(kernel)
        self._timed = False
        self._places: dict[tuple[int, ...], Places] = {}

    def hold(self, entries: Sequence[MultiEntry]) -> None:
        """Records for entries of links whose cookies differ."""
        wanted = [entry for entry in entries if entry.link.own_cookie and entry.link.prog.uses.run_ctx]
        if wanted:
            self.records.hold([entry for entry in wanted if self._tells_function(entry.trampoline)])

    def release(self, entries: Sequence[MultiEntry]) -> None:
        """Give the records back."""
        self.records.release(entries)

    def time_programs(self, enabled: bool) -> bool:
        """Callers that time their programs are others: while nobody asks for times, there is no instruction for it."""
        changes, self._timed = enabled != self._timed, enabled
        return changes

    def _tells_function(self, trampoline: BpfTrampoline) -> bool:
        """Whether the return address at the site, rounded down, is the function."""
        address = trampoline.target.address
        return not address % _ALIGNED and trampoline.site + PATCH_SIZE - address < _ALIGNED

    def make(self, trampoline: BpfTrampoline, flags: TrampFlag) -> SiteImage:
        """See ``Images``."""
        caller = super().make(trampoline, flags)
        if not trampoline.site or not uses_jmp(self._flavour, flags):
            return caller
        try:
            found = any(link.cookie_slot is not None for _, link in trampoline.links)
            record = self.records.at(trampoline.target.address) if found else 0
            return ThunkedImage(self._thunks, trampoline, caller, record)
        except BaseException:
            caller.discard()
            raise

    def write(self) -> None:
        """See ``Images``."""
        self._thunks.write()

    def key(self, trampoline: BpfTrampoline, flags: TrampFlag) -> Hashable:
        """See SharedImages."""
        return (
            self._arguments(trampoline.target),
            identities(trampoline.links),
            self._known_ip(trampoline, flags),
            uses_jmp(self._flavour, flags),
            trampoline.boot,
            self._timed,
        )

    def _known_ip(self, trampoline: BpfTrampoline, flags: TrampFlag) -> int | None:
        if uses_jmp(self._flavour, flags):
            return None
        told = self._tells_function(trampoline) and not flags & TrampFlag.SHARE_IPMODIFY
        return None if told else trampoline.target.address

    def _arguments(self, target: Target) -> Places:
        found = self._places.get(target.arg_sizes)
        if found is None:
            found = self._places[target.arg_sizes] = Places.of(target.model)
        return found

    def generate(self, trampoline: BpfTrampoline, flags: TrampFlag) -> CallerImage:
        """See SharedImages."""
        trampoline.target.model.check()
        places, narrow = self._arguments(trampoline.target)
        ip = self._known_ip(trampoline, flags)
        lists: dict[Kind, list[CallerProg]] = {Kind.FENTRY: [], Kind.MODIFY_RETURN: [], Kind.FEXIT: []}
        for kind, link in trampoline.links:
            prog = _caller_prog(kind, link, found=ip is None)
            for where in (Kind.FENTRY, Kind.FEXIT) if kind is Kind.FSESSION else (kind,):
                lists[where].insert(0, prog)
        spec = CallerSpec(
            places,
            narrow,
            tuple(lists[Kind.FENTRY]),
            tuple(lists[Kind.MODIFY_RETURN]),
            tuple(lists[Kind.FEXIT]),
            ip,
            uses_jmp(self._flavour, flags),
            self._timed,
        )
        backend = self.records.backend if spec.looks_up else None
        name = ksym(KSYM, len(places), [prog.name for prog in spec.progs])
        return CallerImage(self._kernel, self._programs, spec, trampoline.boot, backend, name)


def _caller_prog(kind: Kind, link: TrampLink, *, found: bool) -> CallerProg:
    prog = link.prog
    slot = link.cookie_slot if found else None
    return CallerProg(
        prog.name,
        prog.address,
        prog.bpf_func,
        prog.active,
        prog.stats,
        prog.sleepable,
        not prog.attach_type.is_lsm,
        prog.uses,
        0 if slot is not None else link.cookie,
        slot,
        kind is Kind.FSESSION,
    )
