"""Images in executable memory with their listings, and the names of freed images."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asm.image import Image, Line
from emu.errors import MachineError
from emu.machine.frame_words import StackNames


class ImageText(Protocol):
    """A range of text, ``start`` to ``end``, whose images are built on request."""

    @property
    def start(self) -> int:
        """The first address."""
        ...

    @property
    def end(self) -> int:
        """The address after the last."""
        ...

    def image_at(self, address: int) -> Image | None:
        """The image that covers an address of the range, or None."""
        ...


@dataclass(frozen=True, slots=True)
class ImagesRecord:
    """State of the images in a snapshot."""

    starts: tuple[int, ...]
    images: dict[int, Image]
    texts: tuple[ImageText, ...]
    freed: tuple[tuple[int, int, str], ...]
    stacks: dict[int, Callable[[], StackNames]]


class ImageMap:
    """Images of a machine, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._images: dict[int, Image] = {}
        self._texts: list[ImageText] = []
        self._stacks: dict[int, Callable[[], StackNames]] = {}
        self._freed: list[tuple[int, int, str]] = []
        """Start, end and name, sorted; none overlaps another."""

    def add(self, image: Image) -> None:
        """Register an image. MachineError if it overlaps a registered one."""
        end = image.end
        if self._is_known(image.address, end):
            raise MachineError(f"an image is already registered between {image.address:#x} and {end:#x}")
        insort(self._starts, image.address)
        self._images[image.address] = image

    def add_text(self, text: ImageText) -> None:
        """Register all images of a range. MachineError if it overlaps a registered image or range."""
        if self._is_known(text.start, text.end):
            raise MachineError(f"an image is already registered between {text.start:#x} and {text.end:#x}")
        self._texts.append(text)

    def remove_text(self, text: ImageText) -> None:
        """Remove a range."""
        self._texts.remove(text)

    def _is_known(self, start: int, end: int) -> bool:
        position = bisect_right(self._starts, start)
        return (
            self.at(start) is not None
            or (position < len(self._starts) and self._starts[position] < end)
            or any(text.start < end and start < text.end for text in self._texts)
        )

    def remove(self, address: int) -> None:
        """Remove the image that begins at an address. MachineError if there is none."""
        if self._images.pop(address, None) is None:
            raise MachineError(f"no image at {address:#x}")
        del self._starts[bisect_left(self._starts, address)]
        self._stacks.pop(address, None)

    def name_stack(self, address: int, names: Callable[[], StackNames]) -> None:
        """Name the words of the stack frame of the image at an address; ``names`` is called on demand."""
        self._stacks[address] = names

    def stack_names(self, image: Image) -> StackNames | None:
        """Names of the words of an image's stack frame, None if there are none."""
        names = self._stacks.get(image.address)
        return names() if names is not None else None

    def at(self, address: int) -> Image | None:
        """The image that covers an address."""
        for text in self._texts:
            if text.start <= address < text.end:
                return text.image_at(address)
        position = bisect_right(self._starts, address)
        if not position:
            return None
        image = self._images[self._starts[position - 1]]
        return image if address < image.end else None

    def listed(self) -> list[Image]:
        """Images that were registered one by one, by address."""
        return [self._images[start] for start in self._starts]

    @property
    def texts(self) -> tuple[ImageText, ...]:
        """Ranges whose images are built on request."""
        return tuple(self._texts)

    def line(self, address: int) -> Line | None:
        """The listing line of the instruction at an address."""
        image = self.at(address)
        return image.line_at(address) if image is not None else None

    def phase(self, address: int) -> str | None:
        """The phase of the instruction at an address."""
        line = self.line(address)
        return line.phase if line is not None else None

    def set_freed(self, start: int, end: int, name: str) -> None:
        """Record the name of freed memory."""
        self.set_used(start, end)
        insort(self._freed, (start, end, name))

    def set_used(self, start: int, end: int) -> None:
        """Mark a range as in use again."""
        first = last = self._freed_before(start)
        kept = []
        while last < len(self._freed) and self._freed[last][0] < end:
            old_start, old_end, name = self._freed[last]
            if old_start < start:
                kept.append((old_start, start, name))
            if old_end > end:
                kept.append((end, old_end, name))
            last += 1
        self._freed[first:last] = kept

    def freed(self, address: int) -> str | None:
        """Name of the freed memory at an address; None if it is in use or was never used."""
        position = self._freed_before(address)
        if position < len(self._freed) and self._freed[position][0] <= address:
            return self._freed[position][2]
        return None

    def _freed_before(self, address: int) -> int:
        """Index of the first freed range that ends after an address."""
        position = bisect_left(self._freed, (address,))
        if position and self._freed[position - 1][1] > address:
            position -= 1
        return position

    def capture(self) -> ImagesRecord:
        """State for a snapshot."""
        return ImagesRecord(
            tuple(self._starts), dict(self._images), tuple(self._texts), tuple(self._freed), dict(self._stacks)
        )

    def restore(self, record: ImagesRecord) -> None:
        """Return to a state from ``capture``."""
        self._starts, self._images = list(record.starts), dict(record.images)
        self._texts, self._freed = list(record.texts), list(record.freed)
        self._stacks = dict(record.stacks)
