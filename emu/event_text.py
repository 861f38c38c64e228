"""Text of events."""

from collections.abc import Callable
from dataclasses import fields

from emu.events import Event

_KERNEL_HALF = 1 << 63


def describe(event: Event, symbol: Callable[[int], str]) -> str:
    """One-line text of an event: its kind, then each of its fields; addresses by ``symbol``."""
    parts = [type(event).__name__]
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, bytes):
            shown = value.hex(" ")
        elif isinstance(value, int) and value >= _KERNEL_HALF:
            shown = symbol(value)
        else:
            shown = getattr(value, "name", str(value))
        parts.append(f"{field.name}={shown}")
    return " ".join(parts)
