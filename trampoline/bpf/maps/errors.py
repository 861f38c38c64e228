"""What map creation does not model, and values that don't fit."""

from trampoline.bpf.errors import TrampolineError


class UnsupportedMap(TrampolineError):
    """A map of a type that there is no guest code for: neither made nor refused as a kernel would."""


class MapValueError(TrampolineError, ValueError):
    """A Python value that can't be a key or a value of a map: its size, range or members are others."""
