"""The listing of what a site reaches, made on a synthetic kernel."""

from dataclasses import dataclass
from typing import Any

from asm import Image
from emu.kernel.ftrace.records import JMP_FLAG
from emu.kernel.structs import PERCPU
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.prog import Uses
from trampoline.designs import design_info
from trampoline.designs.entry_thunks import KSYM as THUNKS
from trampoline.lab.lab import Lab
from trampoline.phases import PHASE_COLORS

PROGRAM = "xor eax, eax\nret"


@dataclass(frozen=True, slots=True)
class Shown:
    """A generated image with the names that its listing needs."""

    image: Image
    names: dict[int, str]
    target: str
    flavour: str
    site: bytes
    thunk: Image | None = None
    """What the site jumps to first, where the image is reached through a thunk."""

    def text(self, *, color: bool = False) -> str:
        """Headline, then the listing."""
        head = f"{self.target}, kernel {self.flavour}: {len(self.image)} bytes, {len(self.image.lines)} instructions"
        images = [image for image in (self.thunk, self.image) if image is not None]
        listings = "\n".join(
            image.listing(color=color, names=self.names, phase_colors=PHASE_COLORS) for image in images
        )
        return f"{head}\nsite: {self.site.hex()}\n{listings}"

    def to_json(self) -> dict[str, Any]:
        """The image as plain values."""
        return {"target": self.target, "flavour": self.flavour, "site": self.site.hex(), "image": self.image.to_json()}


def show(
    target: str,
    programs: list[str],
    *,
    flavour: str,
    sleepable: bool = False,
    func_ip: bool = False,
    session_cookie: bool = False,
    cookie: int = 0,
    return_thunk: bool = False,
    call_depth: bool = False,
    design: str = "per-function",
    config: str = "voluntary",
) -> Shown:
    """Attach programs of the given attach types to a function, or to one with the prototype ``target``, and take
    the image that its site reaches.
    """
    functions: tuple[AssemblyFunctions, ...] = ()
    name = target
    if "(" in target:
        name = parse_model(target).name
        functions = (AssemblyFunctions((FunctionText(name, "xor eax, eax\nret", target),)),)
    with Lab(flavour, config, functions=functions, design=design) as lab:
        boot = Boot(
            lab.kernel.kallsyms.address("its_return_thunk") if return_thunk else None,
            PERCPU.offset("call_depth") if call_depth else None,
        )
        lab.trampolines.boot = boot
        multi = design_info(design).links == "multi"
        for number, attach in enumerate(programs):
            prog = lab.prog(
                f"{attach}_multi" if multi else attach,
                PROGRAM,
                name=f"{attach}{number}",
                sleepable=sleepable,
                uses=Uses(func_ip=func_ip, session_cookie=session_cookie),
            )
            if multi:
                lab.attach_multi(prog, [name], cookies=[cookie])
            else:
                lab.attach(prog, name, cookie=cookie)
        function = lab.kernel.function(name)
        assert function.site is not None
        thunk = None
        image = lab.kernel.machine.images.at(lab.kernel.ftrace.direct_functions[function.site] & ~JMP_FLAG)
        assert image is not None
        if image.name.startswith(THUNKS):
            thunk, image = image, lab.kernel.machine.images.at(int(image.lines[-1].text.split()[-1], 0))
            assert image is not None
        names = {symbol.address: symbol.name for symbol in lab.kernel.kallsyms}
        return Shown(
            image,
            names,
            name,
            flavour,
            lab.kernel.machine.read(function.address, function.site + 5 - function.address),
            thunk,
        )
