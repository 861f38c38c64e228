"""Listing of the image that a patch site reaches, on a synthetic kernel."""

from dataclasses import dataclass, replace
from typing import Any

from asm import Image
from emu.kernel.ftrace.records import JMP_FLAG
from emu.kernel.structs import PERCPU
from trampoline.bpf.boot import Boot
from trampoline.designs.entry_thunks import KSYM as THUNKS
from trampoline.lab import Lab, Workload, open_workload
from trampoline.phases import PHASE_COLORS


@dataclass(frozen=True, slots=True)
class Shown:
    """A generated image with the names that its listing needs."""

    image: Image
    names: dict[int, str]
    target: str
    flavour: str
    site: bytes
    thunk: Image | None = None
    """The thunk that the site jumps to first, if the image is reached through one."""

    def text(self, *, color: bool = False) -> str:
        """Headline and listing."""
        head = f"{self.target}, kernel {self.flavour}: {len(self.image)} bytes, {len(self.image.lines)} instructions"
        images = [image for image in (self.thunk, self.image) if image is not None]
        listings = "\n".join(
            image.listing(color=color, names=self.names, phase_colors=PHASE_COLORS) for image in images
        )
        return f"{head}\nsite: {self.site.hex()}\n{listings}"

    def to_json(self) -> dict[str, Any]:
        """The image as plain values."""
        return {"target": self.target, "flavour": self.flavour, "site": self.site.hex(), "image": self.image.to_json()}


def show(workload: Workload, *, return_thunk: bool = False, call_depth: bool = False) -> Shown:
    """Attach a workload's programs, and read the image that the site of the first function reaches.

    Raises what ``open_workload`` and attaching raise.
    """
    with open_workload(replace(workload, calls=(), live=True, testmod=False)) as ready:
        lab = ready.lab
        lab.trampolines.boot = Boot(
            lab.kernel.kallsyms.address("its_return_thunk") if return_thunk else None,
            PERCPU.offset("call_depth") if call_depth else None,
        )
        ready.attach()
        name = ready.links[0].functions[0]
        return shown(lab, name)


def shown(lab: Lab, name: str) -> Shown:
    """The image that the patch site of a function with programs reaches."""
    function = lab.kernel.function(name)
    assert function.site is not None
    thunk = None
    image = lab.kernel.machine.images.at(lab.kernel.ftrace.direct_functions[function.site] & ~JMP_FLAG)
    assert image is not None
    if image.name.startswith(THUNKS):
        thunk, image = image, lab.kernel.machine.images.at(int(image.lines[-1].text.split()[-1], 0))
        assert image is not None
    names = {symbol.address: symbol.name for symbol in lab.kernel.kallsyms}
    site = lab.kernel.machine.read(function.address, function.site + 5 - function.address)
    return Shown(image, names, name, lab.release.name, site, thunk)
