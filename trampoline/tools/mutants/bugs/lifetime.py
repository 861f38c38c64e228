"""Bugs in the lifetime of images: freed too early, too late, or never."""

from collections.abc import Callable, Iterator
from typing import Any

from emu.kernel.percpu_ref import PercpuRefs
from emu.kernel.rcu import RcuFlavour
from emu.kernel.structs import PERCPU_REF_ATOMIC_DEAD, percpu_ref
from trampoline.designs.specialised_image import CallerImage
from trampoline.image.generator import TrampFlag
from trampoline.image.tramp_image import BpfTrampImage
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import replace, wrap
from trampoline.update.bpf_trampoline import BpfTrampoline, TrampolineUpdate


def _calls_original(image: BpfTrampImage) -> bool:
    return image.trampoline is not None and bool(image.trampoline.flags & TrampFlag.CALL_ORIG)


def _put_at_once(image: BpfTrampImage) -> None:
    image.discard()


def _put_uncounted(image: BpfTrampImage) -> None:
    image._kernel.rcu.call(RcuFlavour.RCU_TASKS, image._free)


def _put_untraced(put: Callable[[BpfTrampImage], None]) -> Callable[[BpfTrampImage], None]:
    def mutated(image: BpfTrampImage) -> None:
        if _calls_original(image):
            put(image)
        else:
            image._kernel.rcu.call(RcuFlavour.RCU_TASKS, image._free)

    return mutated


def _put_without_entry(put: Callable[[BpfTrampImage], None]) -> Callable[[BpfTrampImage], None]:
    def mutated(image: BpfTrampImage) -> None:
        if not _calls_original(image):
            put(image)
            return
        assert image.trampoline is not None
        image._skip_programs(image.trampoline)
        image._kernel.percpu_refs.kill(image._pcref)

    return mutated


def _caller_put_without_entry(put: Callable[[CallerImage], None]) -> Callable[[CallerImage], None]:
    def mutated(caller: CallerImage) -> None:
        if not caller.spec.counted:
            put(caller)
            return
        if caller._after_call:
            caller._skip_programs()
        caller._kernel.rcu.call_srcu(caller._refs, caller._left)

    return mutated


def _small_nops(lines: Callable[[Any], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
    def mutated(template: Any) -> Iterator[str]:
        for line in lines(template):
            if line.startswith("nop5 ; a jump to ip_epilogue"):
                yield from ["nop"] * 5
            else:
                yield line

    return mutated


def _keeps_new_image(
    abandon: Callable[..., None],
) -> Callable[..., None]:
    def mutated(trampoline: BpfTrampoline, update: TrampolineUpdate, *, seen: bool) -> None:
        if update.old is not None or not seen:
            abandon(trampoline, update, seen=seen)

    return mutated


def _frees_current_image(update: Callable[..., bool]) -> Callable[..., bool]:
    def mutated(sites: Any, trampolines: Any, progress: Any) -> bool:
        current = [trampoline.cur_image for trampoline in trampolines]
        try:
            return update(sites, trampolines, progress)
        except BaseException:
            for image in current:
                if image is not None:
                    image.put()
            raise

    return mutated


def _kill_at_once(refs: PercpuRefs, ref: int) -> None:
    head = percpu_ref.view(refs._machine, ref)
    head.percpu_count_ptr |= PERCPU_REF_ATOMIC_DEAD
    refs._switched(ref)


_PUT, _CALLER_PUT = (
    "trampoline.image.tramp_image.BpfTrampImage.put",
    "trampoline.designs.specialised_image.CallerImage.put",
)

MUTANTS = (
    Mutant(
        "image-freed-too-early",
        "trampoline.c:bpf_tramp_image_put()",
        "an image is freed as soon as no site calls it, although tasks may still run it",
        replace(_PUT, _put_at_once),
    ),
    Mutant(
        "image-not-counted",
        "e21aa341785c",
        "only RCU-tasks is waited for: a task that sleeps in the original returns into a freed image",
        replace(_PUT, _put_uncounted),
    ),
    Mutant(
        "wrong-grace-period",
        "trampoline.c:bpf_tramp_image_put()",
        "an image without original call waits for RCU-tasks only, not for sleeping sleepable programs",
        wrap(_PUT, _put_untraced),
    ),
    Mutant(
        "first-instructions-not-waited",
        "trampoline.c:__bpf_tramp_image_put_rcu_tasks()",
        "the reference count is killed at once, before tasks in the first instructions have taken their references",
        (wrap(_PUT, _put_without_entry), wrap(_CALLER_PUT, _caller_put_without_entry)),
    ),
    Mutant(
        "last-instructions-not-waited",
        "trampoline.c:__bpf_tramp_image_release()",
        "the image is freed with its last reference, while the task that dropped it still runs the epilogue",
        (
            replace("trampoline.image.tramp_image.BpfTrampImage._released", BpfTrampImage._free),
            replace("trampoline.designs.specialised_image.CallerImage._left", CallerImage.discard),
        ),
    ),
    Mutant(
        "exits-not-skipped",
        "e21aa341785c",
        "a task that returns from the original into an old image still runs its fexit programs",
        (
            replace("trampoline.image.tramp_image.BpfTrampImage._skip_programs", lambda image, trampoline: None),
            replace("trampoline.designs.specialised_image.CallerImage._skip_programs", lambda caller: None),
        ),
    ),
    Mutant(
        "nop-not-atomic",
        "b90829704780",
        "the slot after the original call is five one-byte nops, so that patching the jump there fails",
        wrap("trampoline.image.generator._Template._call_original", _small_nops),
    ),
    Mutant(
        "image-leaked-on-failure",
        "108598c39eef",
        "the new image is leaked when its site cannot be registered",
        wrap("trampoline.update.bpf_trampoline.BpfTrampoline.abandon", _keeps_new_image),
    ),
    Mutant(
        "current-image-freed-on-failure",
        "0253073fb7d7",
        "a failed multi attach frees images that its functions still use",
        wrap("trampoline.update.multi._try_update", _frees_current_image),
    ),
    Mutant(
        "count-summed-too-early",
        "lib/percpu-refcount.c",
        "percpu_ref_kill sums the counts of all CPUs without the RCU grace period for gets and puts in flight",
        replace("emu.kernel.percpu_ref.PercpuRefs.kill", _kill_at_once),
    ),
)
