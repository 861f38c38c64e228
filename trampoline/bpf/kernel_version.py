"""Kernel versions as comparable numbers: ``6.12`` comes after ``6.9``, and ``6.12.107`` after ``6.12``."""

from typing import NamedTuple


class KernelVersion(NamedTuple):
    """Version of a kernel; ``patch``: patch level of the stable series."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> "KernelVersion":
        """The version named by ``6.12`` or ``6.12.107``. Raises ValueError for other text."""
        words = text.split(".")
        if not (2 <= len(words) <= 3 and all(word.isascii() and word.isdigit() for word in words)):
            raise ValueError(f"{text!r} is not a kernel version such as 6.12 or 6.12.107")
        return cls(*map(int, words))

    @property
    def series(self) -> "KernelVersion":
        """The version without its patch level."""
        return KernelVersion(self.major, self.minor)

    @property
    def code(self) -> int:
        """``LINUX_VERSION_CODE``: one byte each, the patch level at most 255."""
        return self.major << 16 | self.minor << 8 | min(self.patch, 255)

    def __str__(self) -> str:
        return ".".join(map(str, self if self.patch else self[:2]))


NO_VERSION = KernelVersion(0, 0)
"""Default of rules before a release completes them."""
