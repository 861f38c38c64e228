"""The design ``specialised``: callers made for their programs, shared by functions."""

from collections.abc import Hashable, Sequence

from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import SITE_SIZE
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfPrograms
from trampoline.bpf.uapi import AttachType
from trampoline.designs.cookie_records import Records
from trampoline.designs.design import Design, DesignInfo, TrampolineDesign
from trampoline.designs.entry_thunks import Thunks
from trampoline.designs.shared_images import SharedImages, identities, ksym
from trampoline.designs.specialised_image import CallerImage
from trampoline.designs.specialised_spec import CallerProg, CallerSpec, Places
from trampoline.designs.traits import KEPT_TABLE, Traits
from trampoline.image.generator import TrampFlag, uses_jmp
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.kfunc_mds import backend_of
from trampoline.kfunc_md.padding import SIZE as PADDING_SIZE
from trampoline.rules import TrampolineRules
from trampoline.tramp_links import TrampProgType
from trampoline.update.bpf_trampoline import BpfTrampoline, Trampolines, site_of
from trampoline.update.ftrace_sites import SingleOps
from trampoline.update.image_source import SiteImage
from trampoline.update.target import LinkEntry, TraceTarget, TrampLink

KSYM = "tramplab_caller"
"""What callers' symbols begin with."""
_ALIGNED = 16


class ThunkedImage:
    """A caller as one function reaches it: by a jump, through a thunk of its own."""

    by_jmp = True

    def __init__(self, thunks: Thunks, trampoline: BpfTrampoline, caller: SiteImage, record: int) -> None:
        """``record``: the function's, 0 where the caller needs none. KernelError: the caller is still held."""
        self._thunks, self._caller = thunks, caller
        self.image = thunks.make(trampoline.target.address, trampoline.site + SITE_SIZE, caller.image, record)

    def put(self) -> None:
        """See ``SiteImage``."""
        self._thunks.put(self.image)
        self._caller.put()

    def discard(self) -> None:
        """See ``SiteImage``."""
        self._thunks.discard((self.image,))
        self._caller.discard()


class SpecialisedImages(SharedImages):
    """Chooses a function's caller by its argument places and its programs, and makes it where there is none yet."""

    def __init__(self, kernel: Kernel, rules: TrampolineRules, programs: BpfPrograms, backend: MetadataBackend) -> None:
        super().__init__(kernel, rules)
        self._programs = programs
        self.records = Records(kernel, backend)
        self._thunks = Thunks(kernel)
        self._timed = False
        self._places: dict[tuple[int, ...], Places] = {}

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """Records for entries of links whose cookies differ."""
        wanted = [entry for entry in entries if entry.link.own_cookie and entry.link.prog.uses.run_ctx]
        if wanted:
            self.records.hold([entry for entry in wanted if self._tells_function(entry.target)])

    def release(self, entries: Sequence[LinkEntry]) -> None:
        """Give the records back."""
        self.records.release(entries)

    def time_programs(self, enabled: bool) -> bool:
        """Callers that time their programs are others: while nobody asks for times, there is no instruction for it."""
        changes, self._timed = enabled != self._timed, enabled
        return changes

    def _tells_function(self, target: TraceTarget) -> bool:
        """Whether the return address at the site, rounded down, is the function."""
        address = target.address
        return not address % _ALIGNED and site_of(self._kernel, target) + SITE_SIZE - address < _ALIGNED

    def make(self, trampoline: BpfTrampoline, flags: TrampFlag) -> SiteImage:
        """See ``Images``."""
        caller = super().make(trampoline, flags)
        if not trampoline.site or not uses_jmp(self._rules, flags):
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
            uses_jmp(self._rules, flags),
            trampoline.boot,
            self._timed,
        )

    def _known_ip(self, trampoline: BpfTrampoline, flags: TrampFlag) -> int | None:
        if uses_jmp(self._rules, flags):
            return None
        told = self._tells_function(trampoline.target) and not flags & TrampFlag.SHARE_IPMODIFY
        return None if told else trampoline.target.address

    def _arguments(self, target: TraceTarget) -> Places:
        found = self._places.get(target.arg_sizes)
        if found is None:
            found = self._places[target.arg_sizes] = Places.of(target.model)
        return found

    def generate(self, trampoline: BpfTrampoline, flags: TrampFlag) -> CallerImage:
        """See SharedImages."""
        trampoline.target.model.check()
        places, narrow = self._arguments(trampoline.target)
        ip = self._known_ip(trampoline, flags)
        lists: dict[TrampProgType, list[CallerProg]] = {
            TrampProgType.FENTRY: [],
            TrampProgType.MODIFY_RETURN: [],
            TrampProgType.FEXIT: [],
        }
        for kind, link in trampoline.links:
            prog = _caller_prog(kind, link, found=ip is None)
            for where in (TrampProgType.FENTRY, TrampProgType.FEXIT) if kind is TrampProgType.FSESSION else (kind,):
                lists[where].insert(0, prog)
        spec = CallerSpec(
            places,
            narrow,
            tuple(lists[TrampProgType.FENTRY]),
            tuple(lists[TrampProgType.MODIFY_RETURN]),
            tuple(lists[TrampProgType.FEXIT]),
            ip,
            uses_jmp(self._rules, flags),
            self._timed,
        )
        backend = self.records.backend if spec.looks_up else None
        name = ksym(KSYM, len(places), [prog.name for prog in spec.progs])
        return CallerImage(self._kernel, self._programs, spec, trampoline.boot, backend, name)


def _caller_prog(kind: TrampProgType, link: TrampLink, *, found: bool) -> CallerProg:
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
        kind is TrampProgType.FSESSION,
        # An LSM cgroup shim keeps none: the programs behind it have their own.
        timed=prog.attach_type is not AttachType.LSM_CGROUP,
    )


def _make(
    kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None
) -> Design:
    backend = backend_of(kernel, metadata or ("padding" if kernel.entry.padding >= PADDING_SIZE else "hash"))
    images = SpecialisedImages(kernel, rules, programs, backend)
    return TrampolineDesign("specialised", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


SPECIALISED = DesignInfo(
    "specialised",
    _make,
    traits=Traits(times_by_image=True, keeps=KEPT_TABLE),
    metadata=("padding", "hash", "flat"),
    meets_preempted=True,
)
