"""An image as text for people."""

from __future__ import annotations

import re
from collections.abc import Mapping

from asm.image import Image

_RESET = "\x1b[0m"
_FAINT = "\x1b[2m"
_LABEL = "\x1b[1;33m"
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Ten bytes is the longest instruction that trampolines hold (movabs); a longer one pushes its own line to the right.
_CODE_WIDTH = 20
_PHASE_WIDTH = 7  # at least; a longer phase widens the column
_TEXT_WIDTH = 40


def render(image: Image, *, color: bool, names: Mapping[int, str], phase_colors: Mapping[str, str]) -> str:
    """The text that `Image.listing` returns."""

    def paint(code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if color and code and text else text

    labels: dict[int, list[str]] = {}
    for label, address in image.symbols.items():
        labels.setdefault(address, []).append(label)

    def name_of(match: re.Match[str]) -> str:
        address = int(match[0], 16)
        found = names.get(address) or next(iter(labels.get(address, ())), None)
        return f"{match[0]} <{found}>" if found else match[0]

    count = len(image.lines)
    rows = [f"{image.name}: {image.address:#x}, {len(image)} bytes, {count} instruction{'' if count == 1 else 's'}"]
    phases = {line.phase for line in image.lines if line.phase}
    width = max(_PHASE_WIDTH, *map(len, phases)) if phases else 0
    for line in image.lines:
        rows.extend(paint(_LABEL, f"{label}:") for label in labels.get(image.address + line.offset, ()))
        phase = ""
        if phases:
            word = line.phase or ""
            phase = paint(phase_colors.get(word, ""), word) + " " * (width - len(word)) + "  "
        text = _ADDRESS.sub(name_of, line.text)
        code = image.code_of(line).hex()
        gap = " " * (_CODE_WIDTH - len(code))
        row = f"{paint(_FAINT, f'{line.offset:04x}')}  {paint(_FAINT, code)}{gap}  {phase}{text}"
        if line.comment:
            row += " " * (_TEXT_WIDTH - len(text)) + paint(_FAINT, f"  ; {line.comment}")
        rows.append(row)
    rows.extend(paint(_LABEL, f"{label}:") for label in labels.get(image.end, ()))
    return "\n".join(rows) + "\n"
