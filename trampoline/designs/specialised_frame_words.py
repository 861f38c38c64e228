"""Names of the stack words of a ``specialised`` caller's frame, from the labels of its pushes."""

from collections.abc import Sequence

from asm import Image
from emu.machine.frame_words import StackNames
from trampoline.designs.specialised_caller import WORD, WORD_LABEL
from trampoline.designs.specialised_spec import CallerSpec

_NAMES = {
    "saved": "run_ctx.saved_run_ctx",
    "run_ctx": "run_ctx.cookie",
    "ret": "return value",
    "count": "nr_args",
    "start": "start time",
}
_NUMBERED = {"session": "session cookie {}", "cookie": "cookie {}"}


def caller_words(image: Image, spec: CallerSpec) -> StackNames:
    """Names of the stack words of a caller."""
    stack = [number for number, (in_regs, _) in enumerate(spec.places, 1) if not in_regs]
    pushed = {}
    for label, address in image.symbols.items():
        if label.startswith(WORD_LABEL):
            pushed[address] = _name(label.removeprefix(WORD_LABEL).partition(".")[2], stack)
    fixed = {WORD * (1 + position): f"arg{number} of the caller" for position, number in enumerate(stack)}
    if stack:
        fixed[0] = "return address of the traced function"
    keeps = "return value" in pushed.values()
    return StackNames(fixed, pushed, None if keeps else image.symbols.get("ip_after_call"))


def _name(word: str, stack: Sequence[int]) -> str:
    if word.startswith("outgoing"):
        return f"arg{stack[int(word.removeprefix('outgoing')) - 1]} of the original"
    for prefix, name in _NUMBERED.items():
        number = word.removeprefix(prefix)
        if number != word and number.isdigit():
            return name.format(int(number))
    return _NAMES.get(word, word)
