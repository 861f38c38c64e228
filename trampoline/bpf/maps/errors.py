"""Errors of map creation and of values that do not fit."""

from trampoline.bpf.errors import TrampolineError


class UnsupportedMap(TrampolineError):
    """A map of a type without guest code: neither created nor refused as a kernel would."""


class MapValueError(TrampolineError, ValueError):
    """A Python value that cannot be a key or a value of a map: wrong size, range or members."""
