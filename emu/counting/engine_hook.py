"""A hook of a Unicorn engine that is a C function, called without the binding's Python thunks."""

import ctypes

from unicorn.unicorn_const import UC_ERR_OK
from unicorn.unicorn_py3.unicorn import Uc, UcError, uclib


class EngineHook:
    """Calls a C function at each block (`UC_HOOK_BLOCK`) or instruction (`UC_HOOK_CODE`), everywhere.

    Code translated before would not call it, so the engine's translations are flushed here and by `remove()`; after
    that the engine no longer refers to the function. `UcError` if the engine refuses.
    """

    def __init__(self, uc: Uc, kind: int, function: int, argument: int) -> None:
        self._uc = uc
        self._handle = ctypes.c_size_t()
        everywhere = (1, 0)  # an empty range
        status = uclib.uc_hook_add(uc._uch, ctypes.byref(self._handle), kind, function, argument, *everywhere)
        if status != UC_ERR_OK:
            raise UcError(status)
        uc.ctl_flush_tb()

    def remove(self) -> None:
        """Remove the hook. Not from within a hook. `UcError` if the engine refuses."""
        status = uclib.uc_hook_del(self._uc._uch, self._handle)
        if status != UC_ERR_OK:
            raise UcError(status)
        self._uc.ctl_flush_tb()


def address_of(callback: "ctypes._CFunctionType") -> int:
    """Host address of a callback's machine code. (`ctypes.cast` would tie the callback into a reference cycle.)"""
    return ctypes.c_void_p.from_buffer_copy(callback).value or 0


STOP_ENGINE = ctypes.cast(uclib.uc_emu_stop, ctypes.c_void_p).value or 0
"""Host address of the C function that stops an engine, from within a hook or from another thread."""


def stop_engine(engine: int) -> None:
    """Ask the engine at this host address to stop, from within a hook."""
    uclib.uc_emu_stop(ctypes.c_void_p(engine))
