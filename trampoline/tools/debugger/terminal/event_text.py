"""Short descriptions of events."""

from collections.abc import Callable
from dataclasses import fields

from emu.events import (
    CpuSerialized,
    Event,
    GracePeriodBegun,
    GracePeriodOver,
    ImageFreed,
    ImageMade,
    TextPatched,
    TrapTaken,
)


def event_text(event: Event, symbol: Callable[[int], str]) -> str:
    """One-line description of an event; ``symbol`` names a guest address."""
    match event:
        case TextPatched(phase, address, old, new):
            return f"text patched at {symbol(address)}, {phase.name.lower()}: {old.hex()} -> {new.hex()}"
        case CpuSerialized(vcpu):
            return f"cpu {vcpu} serialised"
        case TrapTaken(vcpu, site, rip):
            return f"cpu {vcpu} trapped at {symbol(site)}, went on at {symbol(rip)}"
        case GracePeriodBegun(flavour, number, holdouts):
            return f"grace period {number} ({flavour}) begun, waits for {holdouts}"
        case GracePeriodOver(flavour, number):
            return f"grace period {number} ({flavour}) over"
        case ImageMade(address, size, name):
            return f"image made: {name}, {size} bytes at {address:#x}"
        case ImageFreed(address, size, name):
            return f"image freed: {name}, {size} bytes at {address:#x}"
        case _:
            given = ", ".join(f"{field.name} {getattr(event, field.name)}" for field in fields(event))
            return f"{type(event).__name__}: {given}"
