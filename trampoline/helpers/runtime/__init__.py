"""The code of helpers: kernel functions that programs call, as guest code or Python (docs/helpers.md)."""

from trampoline.helpers.runtime.definition import GuestHelper, Helper, HelperCall, PythonHelper, python_helper, signed
from trampoline.helpers.runtime.printing import TraceLine
from trampoline.helpers.runtime.runtime import CALL_BASE, HELPERS, Runtime, UnsupportedHelper

__all__ = [
    "CALL_BASE",
    "HELPERS",
    "GuestHelper",
    "Helper",
    "HelperCall",
    "PythonHelper",
    "Runtime",
    "TraceLine",
    "UnsupportedHelper",
    "python_helper",
    "signed",
]
