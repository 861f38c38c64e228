"""What a tracing program is for: a function of the kernel or of another program."""

from dataclasses import dataclass

from trampoline.bpf.program import Program
from trampoline.btf import Btf, Func


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What ``bpf_check_attach_target`` found: the function's type in ``btf``, and the program that it is of."""

    name: str
    btf: Btf
    btf_id: int
    func: Func | None = None
    prog: Program | None = None
