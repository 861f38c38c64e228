"""What a helper's code is: assembly text, or a Python function behind a host call.

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
"""Arguments of a call from a program."""
U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HelperCall:
    """One call of a Python helper: where it was called."""

    runtime: "Runtime"
    vcpu: Vcpu

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.runtime.kernel

    def read(self, address: int, size: int) -> bytes:
        """Guest memory, which must be there: emu.NotMapped comes out of the call."""
        return self.kernel.machine.read(address, size) if size else b""

    def write(self, address: int, data: bytes) -> None:
        """Write guest memory, which must be there."""
        if data:
            self.kernel.machine.write(address, data)

    def read_nofault(self, address: int, size: int) -> bytes | None:
        """Guest memory, None where any of it is missing (``copy_from_kernel_nofault``)."""
        try:
            return self.read(address, size)
        except NotMapped:
            return None

    def string(self, address: int, most: int) -> bytes | None:
        """A string of guest memory without its NUL, cut to ``most`` bytes; None where it runs into missing memory."""
        text = b""
        while len(text) < most:
            # Up to the end of the page: the string may end in front of a hole.
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
    """A helper as assembly text: arguments in rdi, rsi, rdx, rcx, r8, the result in rax; or what makes the text of a
    kernel configuration. It may name kernel symbols, other helpers and fields of structures.
    """

    name: str
    text: str | Callable[[Config], str]


@dataclass(frozen=True, slots=True)
class PythonHelper:
    """A helper as a Python function: it gets a HelperCall and the arguments, as unsigned 64-bit numbers.

    What it returns is the result, None leaves 0; a KernelError is the negative error code.
    """

    name: str
    function: Callable[..., int | None]
    arguments: int

    def call(self, call: HelperCall) -> int:
        """Answer one call."""
        arguments = call.vcpu.args(self.arguments) if self.arguments else []
        try:
            result = self.function(call, *arguments)
        except KernelError as error:
            result = -error.errno
        return (result or 0) & U64


Helper = GuestHelper | PythonHelper


def python_helper(name: str) -> Callable[[Callable[..., int | None]], PythonHelper]:
    """Make a helper of a function: its parameters behind the first are the helper's arguments.

    TrampolineError for more than five.
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
