"""Images shared by functions with the same programs and the same other inputs of the code."""

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
"""Programs named in a symbol; further ones are only counted."""


class ReleasedImage(Protocol):
    """A shared image: its address, and two ways to free it."""

    @property
    def image(self) -> int:
        """Guest address."""
        ...

    def put(self) -> None:
        """Frees it, reached by sites before, once no task can be in it."""

    def discard(self) -> None:
        """Frees it at once: no site ever reached it."""


class SharedImage:
    """An image and the number of trampolines that use it."""

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
        """False: the call at the site identifies the function."""
        return False

    def put(self) -> None:
        self._reached = True
        self.discard()

    def discard(self) -> None:
        """Drops one user; sites of other trampolines may have reached the image."""
        self.users -= 1
        if not self.users:
            del self._among[self._key]
            if self._reached:
                self.inner.put()
            else:
                self.inner.discard()


class SharedImages(ABC):
    """Source of shared images. Targets that are no ftrace sites (BPF programs) have one each, as in kernels."""

    def __init__(self, kernel: Kernel, rules: TrampolineRules) -> None:
        self._kernel, self._rules = kernel, rules
        self._single = FunctionImages(kernel, rules)
        self._shared: dict[Hashable, SharedImage] = {}

    @abstractmethod
    def key(self, trampoline: BpfTrampoline, flags: TrampFlag) -> Hashable:
        """Key of a trampoline's image: all inputs of its code."""

    @abstractmethod
    def generate(self, trampoline: BpfTrampoline, flags: TrampFlag) -> ReleasedImage:
        """Generates a new image. KernelError."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        self._single.check(target, prog)

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        self._single.hold(entries)

    def release(self, entries: Sequence[LinkEntry]) -> None:
        self._single.release(entries)

    def make(self, trampoline: BpfTrampoline, flags: TrampFlag) -> SiteImage:
        if not trampoline.site:
            return self._single.make(trampoline, flags)
        key = self.key(trampoline, flags)
        shared = self._shared.get(key)
        if shared is None:
            shared = SharedImage(self._shared, key, self.generate(trampoline, flags))
        shared.users += 1
        return shared

    def write(self) -> None:
        self._single.write()

    def time_programs(self, enabled: bool) -> bool:
        return self._single.time_programs(enabled)

    def is_outdated(self, before: TrampFlag, flags: TrampFlag) -> bool:
        """True if livepatch started or stopped sharing the site: then the return address there does not identify the
        function.
        """
        return bool((before ^ flags) & TrampFlag.SHARE_IPMODIFY)


def ksym(prefix: str, slots: int, progs: Sequence[str]) -> str:
    """Symbol of a shared image: prefix, argument slots and programs."""
    names = [*progs[:_NAMED], f"{len(progs) - _NAMED}_more"] if len(progs) > _NAMED else progs
    return "_".join([prefix, str(slots), *names])


def identities(links: Sequence[tuple[TrampProgType, TrampLink]]) -> tuple[Hashable, ...]:
    """Part of the key of a shared image for its links: functions of one multi link share if their cookies are equal or
    in records; a plain link shares with no other.

    So after a link is detached no function has an image with its program.
    """
    found = []
    for kind, link in links:
        cookie = None if link.cookie_slot is not None or not link.prog.uses.run_ctx else link.cookie
        found.append((kind.value, link.owner or link, link.cookie_slot, cookie))
    return tuple(found)
