"""``struct bpf_tramp_image``: one generated image, and its lifetime (kernel/bpf/trampoline.c)."""

from collections.abc import Callable
from contextlib import suppress

from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.kernel.text.kallsyms import Symbol
from emu.machine.frame_words import StackNames
from trampoline.bpf.structs import bpf_tramp_image
from trampoline.image.generator import TrampFlag, Trampoline
from trampoline.text_poke import BpfTextPokeType, bpf_arch_text_poke

BPF_INSN_SAFETY = 64
"""Bytes that the generator reserves after an image."""


class BpfTrampImage:
    """An image in guest memory. It is released in the steps of ``bpf_tramp_image_put``, each after its grace period."""

    def __init__(self, kernel: Kernel, size: int, name: str) -> None:
        """Allocates an image (``trampoline.c:bpf_tramp_image_alloc()``). KernelError -ENOMEM at any step frees
        everything.
        """
        self._kernel, self.name = kernel, name
        self.trampoline: Trampoline | None = None
        self.freed = False
        self.address = kernel.slab.alloc(bpf_tramp_image.size, f"bpf_tramp_image of {name}")
        try:
            self.image = kernel.execmem.alloc(size, name)
            try:
                kernel.percpu_refs.init(self._pcref, self._released, name)
            except BaseException:
                kernel.execmem.free(self.image)
                raise
        except BaseException:
            kernel.slab.free(self.address)
            raise
        self._symbol: Symbol | None = None

    @property
    def by_jmp(self) -> bool:
        """True if sites jump to it (``trampoline.c:bpf_trampoline_use_jmp()``)."""
        return self.trampoline is not None and self.trampoline.by_jmp

    def fill(self, trampoline: Trampoline, size: int, stack: Callable[[], StackNames]) -> None:
        """Writes the generated code (``bpf_arch_text_copy()``), trims the allocation to ``size`` bytes, and records the
        patch addresses and the names of its stack words.
        """
        self._kernel.execmem.trim(self.image, size)
        self.trampoline = trampoline
        self._kernel.execmem.fill(trampoline.image, stack)
        self._symbol = self._kernel.kallsyms.add(self.name, self.image, size)
        view = bpf_tramp_image.view(self._kernel.machine, self.address)
        view.image, view.size = self.image, size
        view.ip_after_call, view.ip_epilogue = trampoline.ip_after_call or 0, trampoline.ip_epilogue or 0
        view.call_orig, view.nr_skips = int(bool(trampoline.flags & TrampFlag.CALL_ORIG)), len(trampoline.skips)

    def discard(self) -> None:
        """Frees an image that never became current (``trampoline.c:bpf_tramp_image_free()``)."""
        self._free()

    def put(self) -> None:
        """Release it once no CPU and no task can be in it (``bpf_tramp_image_put``).

        With an original call: 1 the rest of the image is jumped over by tasks that return from the original, 2 RCU-
        tasks for those in its first instructions, 3 its reference count for those in the original, 4 RCU-tasks for
        those in
        its last instructions. Without: RCU-tasks-trace for sleepable programs, RCU-tasks for the rest.
        """
        rcu = self._kernel.rcu
        trampoline = self.trampoline
        if trampoline is not None and trampoline.flags & TrampFlag.CALL_ORIG:
            self._skip_programs(trampoline)
            rcu.call(RcuFlavour.RCU_TASKS, lambda: self._kernel.percpu_refs.kill(self._pcref))
        else:
            rcu.call(RcuFlavour.RCU_TASKS_TRACE, lambda: rcu.call(RcuFlavour.RCU_TASKS, self._free))

    def _skip_programs(self, trampoline: Trampoline) -> None:
        jumps = [(skip.nop, skip.target) for skip in trampoline.skips]
        if trampoline.ip_after_call is not None and trampoline.ip_epilogue is not None:
            jumps.append((trampoline.ip_after_call, trampoline.ip_epilogue))
        for ip, target in jumps:
            # The kernel warns and continues: a replaced image must be released in any case.
            with suppress(KernelError):
                bpf_arch_text_poke(
                    self._kernel, ip, BpfTextPokeType.BPF_MOD_NOP, BpfTextPokeType.BPF_MOD_JUMP, None, target
                )

    @property
    def _pcref(self) -> int:
        return self.address + bpf_tramp_image.offset("pcref")

    def _released(self) -> None:
        self._kernel.rcu.call(RcuFlavour.RCU_TASKS, self._free)

    def _free(self) -> None:
        kernel = self._kernel
        if self._symbol is not None:
            kernel.kallsyms.remove(self._symbol)
        kernel.execmem.free(self.image)
        kernel.percpu_refs.exit(self._pcref)
        kernel.slab.free(self.address)
        self.freed = True
