"""Images that functions share: one for all those whose programs, and whatever else it depends on, are the same."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Protocol

from emu.kernel.kernel import Kernel
from trampoline.bpf.prog import BpfProg
from trampoline.designs.function_images import FunctionImages
from trampoline.image.generator import TrampFlag
from trampoline.rules import TrampolineRules
from trampoline.tramp_links import TrampProgType
from trampoline.update.bpf_trampoline import BpfTrampoline
from trampoline.update.image_source import SiteImage
from trampoline.update.target import LinkEntry, TraceTarget, TrampLink

_NAMED = 4
"""Programs that a symbol names; of further ones it gives the number."""


class ReleasedImage(Protocol):
    """What is shared: an address, and two ways for it to go."""

    @property
    def image(self) -> int:
        """Guest address."""
        ...

    def put(self) -> None:
        """No site reaches it any more: free it when nobody can be in it."""

    def discard(self) -> None:
        """No site ever reached it: free it."""


class SharedImage:
    """An image and the number of trampolines that have it."""

    def __init__(self, among: dict[Hashable, "SharedImage"], key: Hashable, inner: ReleasedImage) -> None:
        self._among, self._key, self.inner = among, key, inner
        self.users = 0
        self._reached = False
        among[key] = self

    @property
    def image(self) -> int:
        """Guest address."""
        return self.inner.image

    @property
    def by_jmp(self) -> bool:
        """Never: the call at the site says which function was entered."""
        return False

    def put(self) -> None:
        """See ``SiteImage``."""
        self._reached = True
        self.discard()

    def discard(self) -> None:
        """See ``SiteImage``; other trampolines' sites may have reached it."""
        self.users -= 1
        if not self.users:
            del self._among[self._key]
            if self._reached:
                self.inner.put()
            else:
                self.inner.discard()


class SharedImages(ABC):
    """Makes them. Targets that are no ftrace sites (BPF programs) have an image each, as kernels make it."""

    def __init__(self, kernel: Kernel, rules: TrampolineRules) -> None:
        self._kernel, self._rules = kernel, rules
        self._single = FunctionImages(kernel, rules)
        self._shared: dict[Hashable, SharedImage] = {}

    @abstractmethod
    def key(self, trampoline: BpfTrampoline, flags: TrampFlag) -> Hashable:
        """What the image of a trampoline depends on."""

    @abstractmethod
    def generate(self, trampoline: BpfTrampoline, flags: TrampFlag) -> ReleasedImage:
        """A new one. KernelError."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """See ``Images``."""
        self._single.check(target, prog)

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """See ``Images``."""
        self._single.hold(entries)

    def release(self, entries: Sequence[LinkEntry]) -> None:
        """See ``Images``."""
        self._single.release(entries)

    def make(self, trampoline: BpfTrampoline, flags: TrampFlag) -> SiteImage:
        """See ``Images``."""
        if not trampoline.site:
            return self._single.make(trampoline, flags)
        key = self.key(trampoline, flags)
        shared = self._shared.get(key)
        if shared is None:
            shared = SharedImage(self._shared, key, self.generate(trampoline, flags))
        shared.users += 1
        return shared

    def write(self) -> None:
        """See ``Images``."""
        self._single.write()

    def time_programs(self, enabled: bool) -> bool:
        """See ``Images``."""
        return self._single.time_programs(enabled)

    def is_outdated(self, before: TrampFlag, flags: TrampFlag) -> bool:
        """While livepatch shares the site, the return address there does not tell the function."""
        return bool((before ^ flags) & TrampFlag.SHARE_IPMODIFY)


def ksym(prefix: str, slots: int, progs: Sequence[str]) -> str:
    """The symbol of an image that functions share: the argument slots that it serves and its programs."""
    names = [*progs[:_NAMED], f"{len(progs) - _NAMED}_more"] if len(progs) > _NAMED else progs
    return "_".join([prefix, str(slots), *names])


def identities(links: Sequence[tuple[TrampProgType, TrampLink]]) -> tuple[Hashable, ...]:
    """What the links of functions that share an image have in common: functions of one multi link whose cookies are
    the same, or are found elsewhere, and a plain link with itself alone.

    Detaching a link then leaves no function with an image that has its program.
    """
    found = []
    for kind, link in links:
        cookie = None if link.cookie_slot is not None or not link.prog.uses.run_ctx else link.cookie
        found.append((kind.value, link.owner or link, link.cookie_slot, cookie))
    return tuple(found)
