"""An access to a context, and the field at its offset."""

from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar import Scalar


@dataclass(frozen=True, slots=True)
class ContextAccess:
    """``size`` bytes at ``off``."""

    off: int
    size: int
    write: bool


@dataclass(frozen=True, slots=True)
class ContextField:
    """Result of a load from the context (``struct bpf_insn_access_aux``)."""

    kind: RegKind = RegKind.SCALAR_VALUE
    flags: Flag = Flag.NONE
    btf: Btf | None = None
    btf_id: int = 0
    number: Scalar | None = None
    """Known range of a number; None: unknown."""
