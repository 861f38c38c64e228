"""Guest RAM: one anonymous mapping that every engine shares, and the allocator of its frames."""

import ctypes
import mmap

from emu.errors import OutOfMemory
from emu.machine.address_map import PAGE_SHIFT, PAGE_SIZE

ZERO_PAGE = bytes(PAGE_SIZE)


class Ram:
    """``frames`` frames of guest RAM, and as many again for views of stale text (see ``emu.machine.text_view``).

    ``bytes`` and ``words`` are the same memory; host pages are committed when first touched. ``dirty`` holds the frames
    that the *host* wrote since the last snapshot; D bits show the guest's writes.
    """

    def __init__(self, size: int) -> None:
        self.frames = size >> PAGE_SHIFT
        self.size = 2 * self.frames << PAGE_SHIFT
        self.bytes = mmap.mmap(-1, self.size)
        self.words = memoryview(self.bytes).cast("Q")
        self.host_address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.dirty: set[int] = set()
        self.allocator = FrameAllocator(self)

    def page(self, frame: int) -> bytes:
        """A frame's 4096 bytes."""
        start = frame << PAGE_SHIFT
        return self.bytes[start : start + PAGE_SIZE]

    def set_page(self, frame: int, content: bytes) -> None:
        """Overwrite a frame without marking it dirty."""
        start = frame << PAGE_SHIFT
        self.bytes[start : start + PAGE_SIZE] = content


class FrameAllocator:
    """Frames of guest RAM, lowest first; the last freed one is reused before any new one.

    A frame mapped twice is shared: its last user frees it. Frame 0 stays unused, so that no frame number is false.
    """

    def __init__(self, ram: Ram) -> None:
        self._ram = ram
        self._next = 1
        self._touched = 1
        self._free: list[int] = []
        self._extra_users: dict[int, int] = {}

    @property
    def free_frames(self) -> int:
        """Number of free frames."""
        return self._ram.frames - self._next + len(self._free)

    def take(self, count: int) -> list[int]:
        """Allocate ``count`` zeroed frames. OutOfMemory, and nothing is allocated."""
        if count > self.free_frames:
            raise OutOfMemory(count, self.free_frames)
        reused = min(count, len(self._free))
        frames = self._free[len(self._free) - reused :][::-1]
        del self._free[len(self._free) - reused :]
        fresh = count - reused
        frames.extend(range(self._next, self._next + fresh))
        self._next += fresh
        for frame in frames:
            # Above the high-water mark the host's anonymous memory is still zero.
            if frame < self._touched:
                self._ram.set_page(frame, ZERO_PAGE)
                self._ram.dirty.add(frame)
        self._touched = max(self._touched, self._next)
        return frames

    def share(self, frame: int) -> None:
        """Add a user of a frame."""
        self._extra_users[frame] = self._extra_users.get(frame, 0) + 1

    def is_shared(self, frame: int) -> bool:
        """True if a frame has more than one user."""
        return frame in self._extra_users

    def give_back(self, frame: int) -> None:
        """Remove a user of a frame."""
        users = self._extra_users.get(frame, 0)
        if users > 1:
            self._extra_users[frame] = users - 1
        elif users:
            del self._extra_users[frame]
        else:
            self._free.append(frame)

    def state(self) -> tuple[int, tuple[int, ...], dict[int, int]]:
        """State of the allocator for a snapshot."""
        return self._next, tuple(self._free), dict(self._extra_users)

    def restore(self, state: tuple[int, tuple[int, ...], dict[int, int]]) -> None:
        """Return to a state from ``state``; frames touched since then stay known as touched."""
        self._next, self._free, self._extra_users = state[0], list(state[1]), dict(state[2])
