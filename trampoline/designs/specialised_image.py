"""A caller of the ``specialised`` design in guest memory, and how long it must live."""

from functools import partial

from asm import assemble
from asm.encodings import jmp_rel32
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.kernel.text.kallsyms import Symbol
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfPrograms
from trampoline.designs.cookie_records import record
from trampoline.designs.specialised_caller import caller_text
from trampoline.designs.specialised_frame_words import caller_words
from trampoline.designs.specialised_spec import CallerSpec
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.phases import check_phases

LONGEST_INSTRUCTION = 15


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
                made = assemble(check_phases(text, name), self.image, symbols, name=name)
                kernel.execmem.trim(self.image, len(made))
                kernel.execmem.fill(made, partial(caller_words, made, spec))
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
