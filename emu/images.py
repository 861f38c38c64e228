"""What lies where in executable memory: images with their listings, and the names of images that were freed."""

from bisect import bisect_right, insort
from dataclasses import dataclass

from asm.image import Image, Line
from emu.errors import MachineError


@dataclass(frozen=True, slots=True)
class ImagesRecord:
    """What a snapshot keeps of the images."""

    starts: tuple[int, ...]
    images: dict[int, Image]
    freed: tuple[tuple[int, int, str], ...]


class Images:
    """The images of a machine by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._images: dict[int, Image] = {}
        self._freed: list[tuple[int, int, str]] = []

    def add(self, image: Image) -> None:
        """Make an image known. MachineError if it overlaps one that is."""
        end = image.end
        position = bisect_right(self._starts, image.address)
        before = self.at(image.address)
        if before is not None or (position < len(self._starts) and self._starts[position] < end):
            raise MachineError(f"an image is already known between {image.address:#x} and {end:#x}")
        insort(self._starts, image.address)
        self._images[image.address] = image

    def remove(self, address: int) -> None:
        """Forget the image that begins at an address."""
        if self._images.pop(address, None) is None:
            raise MachineError(f"no image at {address:#x}")
        self._starts.remove(address)

    def at(self, address: int) -> Image | None:
        """The image that covers an address."""
        position = bisect_right(self._starts, address)
        if not position:
            return None
        image = self._images[self._starts[position - 1]]
        return image if address < image.end else None

    def line(self, address: int) -> Line | None:
        """The listing line of the instruction at an address."""
        image = self.at(address)
        return image.line_at(address) if image is not None else None

    def phase(self, address: int) -> str | None:
        """The phase of the instruction at an address."""
        line = self.line(address)
        return line.phase.value if line is not None and line.phase is not None else None

    def set_freed(self, start: int, end: int, name: str) -> None:
        """Remember what was freed in a range."""
        self.set_used(start, end)
        self._freed.append((start, end, name))

    def set_used(self, start: int, end: int) -> None:
        """A range is in use again."""
        kept = []
        for first, last, name in self._freed:
            if first < start:
                kept.append((first, min(last, start), name))
            if last > end:
                kept.append((max(first, end), last, name))
        self._freed = kept

    def freed(self, address: int) -> str | None:
        """The name of what was freed at an address, None if that is in use or was never used."""
        return next((name for start, end, name in reversed(self._freed) if start <= address < end), None)

    def capture(self) -> ImagesRecord:
        """What a snapshot keeps."""
        return ImagesRecord(tuple(self._starts), dict(self._images), tuple(self._freed))

    def restore(self, record: ImagesRecord) -> None:
        """Back to what ``capture`` gave."""
        self._starts, self._images = list(record.starts), dict(record.images)
        self._freed = list(record.freed)
