"""Definition of a helper's code: assembly text, or a Python function reached by a host call.

>>> @python_helper("bpf_get_current_uid_gid")
... def get_current_uid_gid(call: HelperCall) -> int:
...     return 0
>>> answer = GuestHelper("bpf_answer", "mov eax, 42\\nret")

Either is a kernel function of this name that programs call with up to five arguments; helpers and kfuncs alike. Those
of ``trampoline.bpf.helpers.runtime.HELPERS`` are in every lab; ``Runtime.add`` adds one to a lab.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.errors import NotMapped
from emu.kernel.config import Config
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.machine.vcpu import Vcpu
from trampoline.bpf.errors import TrampolineError

if TYPE_CHECKING:
    from trampoline.bpf.helpers.runtime.runtime import Runtime

MOST_ARGS = 5
"""Maximum number of arguments of a call from a program."""
U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HelperCall:
    """Context of one call of a Python helper."""

    runtime: "Runtime"
    vcpu: Vcpu

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.runtime.kernel

    def read(self, address: int, size: int) -> bytes:
        """Read guest memory, which must be mapped: otherwise the call raises emu.NotMapped."""
        return self.kernel.machine.read(address, size) if size else b""

    def write(self, address: int, data: bytes) -> None:
        """Write guest memory, which must be mapped."""
        if data:
            self.kernel.machine.write(address, data)

    def read_nofault(self, address: int, size: int) -> bytes | None:
        """Read guest memory; None if any of it is not mapped (``copy_from_kernel_nofault``)."""
        try:
            return self.read(address, size)
        except NotMapped:
            return None

    def string(self, address: int, most: int) -> bytes | None:
        """Read a string without its NUL, truncated to ``most`` bytes; None if it reaches unmapped memory."""
        text = b""
        while len(text) < most:
            # Up to the end of the page: the string may end just before unmapped memory.
            part = self.read_nofault(address + len(text), min(most - len(text), 4096 - (address + len(text)) % 4096))
            if part is None:
                return None
            end = part.find(b"\0")
            if end >= 0:
                return text + part[:end]
            text += part
        return text


@dataclass(frozen=True, slots=True)
class GuestHelper:
    """A helper as assembly text: arguments in rdi, rsi, rdx, rcx, r8, the result in rax.

    ``text`` may be a function of the kernel configuration. It may use kernel symbols, other helpers and fields of
    structures.
    """

    name: str
    text: str | Callable[[Config], str]


@dataclass(frozen=True, slots=True)
class PythonHelper:
    """A helper as a Python function: it takes a HelperCall and the arguments, as unsigned 64-bit numbers.

    Its return value is the result, None counts as 0; a KernelError becomes the negative error code.
    """

    name: str
    function: Callable[..., int | None]
    arguments: int

    def call(self, call: HelperCall) -> int:
        """Run the function for one call."""
        arguments = call.vcpu.args(self.arguments) if self.arguments else []
        try:
            result = self.function(call, *arguments)
        except KernelError as error:
            result = -error.errno
        return (result or 0) & U64


Helper = GuestHelper | PythonHelper


def python_helper(name: str) -> Callable[[Callable[..., int | None]], PythonHelper]:
    """Make a helper from a function: its parameters after the first are the helper's arguments.

    Raises TrampolineError for more than five.
    """

    def made(function: Callable[..., int | None]) -> PythonHelper:
        arguments = len(inspect.signature(function).parameters) - 1
        if not 0 <= arguments <= MOST_ARGS:
            raise TrampolineError(f"{name}: a helper takes a HelperCall and up to {MOST_ARGS} arguments")
        return PythonHelper(name, function, arguments)

    return made


def signed(value: int, bits: int = 64) -> int:
    """The low bits of an argument as a signed number."""
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)
