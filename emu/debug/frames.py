"""Stack frames of active functions, with names for their words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.errors import EmuError
from emu.kernel.kernel import Kernel
from emu.machine.frame_words import StackNames
from emu.machine.registers import GENERAL
from emu.machine.unwind import StackState, stack_state

if TYPE_CHECKING:
    from asm.image import Image

MOST_CALLS = 64
"""Maximum number of frames of a backtrace."""
WORD = 8


@dataclass(frozen=True, slots=True)
class FrameSlot:
    """Eight bytes of a stack. ``offset``: from rbp if it points into the frame, else from rsp.

    ``words``: the value's symbol or object, if known.
    """

    address: int
    offset: int
    name: str
    value: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """Stack frame of one function, the highest address first. ``base``: the register that offsets count from."""

    function: str
    base: str
    slots: tuple[FrameSlot, ...]

    def __getitem__(self, name: str) -> FrameSlot:
        """The slot with a name; "return address" without its destination is accepted. KeyError."""
        for slot in self.slots:
            if slot.name == name or (name == "return address" and slot.name.startswith("return address →")):
                return slot
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Activation:
    """An active function: ``rip`` is where it resumes, rsp and rbp are their values there.

    ``end``: the address after the return address, None if it is not known.
    """

    rip: int
    rsp: int
    rbp: int
    end: int | None
    depth: StackState | None
    image: "Image | None"
    names: StackNames | None

    @property
    def return_slot(self) -> int | None:
        """Address of the return address: the caller's, if the one into the traced function was dropped."""
        if self.end is None:
            return None
        slot = self.end if self.depth is not None and self.depth.replaced else self.end - WORD
        return max(slot, self.rsp)

    def named(self) -> dict[int, str]:
        """Names of the words by address, without the return address."""
        if self.end is None:
            return {}
        found: dict[int, str] = {}
        pushed = self.names.pushed if self.names is not None else {}
        if self.depth is not None and self.image is not None:
            for distance, at in self.depth.pushed:
                register = _pushed_register(self.image, at)
                name = pushed.get(at) or (f"saved {register}" if register else "")
                if name:
                    found[self.end + distance] = name
        fixed = self.names.fixed if self.names is not None else {}
        found |= {self.end + distance: name for distance, name in fixed.items() if self.end + distance >= self.rsp}
        if self.depth is not None and self.depth.replaced:
            found[self.end - WORD] = "return value"
        return found


def activations(kernel: Kernel, rip: int, rsp: int, rbp: int) -> Iterator[Activation]:
    """The active functions, innermost first."""
    machine = kernel.machine
    for _ in range(MOST_CALLS):
        if rip == machine.host_calls.return_address:
            return
        one = _activation(kernel, rip, rsp, rbp)
        yield one
        slot = one.return_slot
        if slot is None:
            return
        saved = next((at for at, name in one.named().items() if name == "saved rbp" and one.rsp <= at), None)
        try:
            if saved is not None:
                rbp = machine.read_u64(saved)
            rip, rsp = machine.read_u64(slot), slot + WORD
        except EmuError:
            return


def _activation(kernel: Kernel, rip: int, rsp: int, rbp: int) -> Activation:
    machine = kernel.machine
    if machine.host_calls.name(rip) is not None:
        return Activation(rip, rsp, rbp, rsp + WORD, None, None, None)
    image = machine.images.at(rip)
    if image is None:
        return Activation(rip, rsp, rbp, None, None, None, None)
    names = machine.images.stack_names(image)
    depth = stack_state(image, rip, names.replaced_at if names is not None else None)
    return Activation(rip, rsp, rbp, depth.frame(rsp, rbp) if depth is not None else None, depth, image, names)


def _pushed_register(image: "Image", address: int) -> str:
    """The register that a push instruction of an image saves; empty for other operands."""
    line = image.line_at(address)
    operation, _, operand = line.text.partition(" ") if line is not None else ("", "", "")
    return operand.strip() if operation == "push" and operand.strip() in GENERAL else ""
